"""Lemmas B.6 and B.7 and Proposition 5.2 / B.8: what is not in `ostools.theory.spectra`, whose functions they are made of.

B.6's largest eigenvalue 1 is simple if and only if Lambda_ii < 1 for every i >= 2. The paper asks in B.6 and B.8 that "each row
except the first" has at least two non-zero entries. Without entries below 0 that gives Lambda_ii < 1. It is more than is
needed: a later row may attend to token 1 alone. Lambda = I breaks both conditions, and has the limit I. Softmax rows meet them
in exact arithmetic, since every weight is positive; sharp scores lose that to rounding.

Of (Lambda + I) / 2 B.8's proof says that it "with our assumptions is diagonalizable". That does not follow: `coupled` meets
the assumptions, and is not. The limit needs no eigenvectors: without token 1 the matrix is triangular with a diagonal below 1,
and the powers of such a matrix vanish.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from ostools.theory import spectra
from ostools.theory.bounds import paths

Matrix = Float[Tensor, "query key"]


def causal_softmax(scores: Matrix) -> Matrix:
    """Row i: softmax over the scores of keys j <= i. Row-stochastic and lower-triangular."""
    hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)
    return scores.masked_fill(hidden, -torch.inf).softmax(-1)


def with_diagonal(diagonal: Float[Tensor, " pos"], seed: int) -> Matrix:
    """A row-stochastic triangular matrix with this diagonal, the rest of each row spread at random over earlier keys.

    The first entry has to be 1, as the first row has no other.
    """
    n = len(diagonal)
    scores = torch.randn(n, n, generator=torch.Generator().manual_seed(seed), dtype=diagonal.dtype)
    earlier = scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(), -torch.inf).softmax(-1)
    earlier[0] = 0.0
    return (1.0 - diagonal)[:, None] * earlier + diagonal.diag()


def eigenvectors(matrix: Matrix, eigenvalue: float = 1.0, rounding: float = 1e-12) -> int:
    """The dimension of { x : A x = lambda x }, out of the singular values of A - lambda I, whatever A's shape.

    For lambda = 1 of a row-stochastic A this IS the multiplicity (Lemma B.6): its powers are bounded, so that 1 has no Jordan
    block. Another eigenvalue may have fewer eigenvectors than its multiplicity, see `coupled`.
    """
    defects = torch.linalg.svdvals(matrix - eigenvalue * torch.eye(len(matrix), dtype=matrix.dtype))
    return int((defects <= rounding * len(matrix)).sum())


def coupled() -> Matrix:
    """A pattern that has Proposition B.8's assumptions and is not diagonalizable, against its proof; float64, exact.

        Lambda = [[1, 0, 0], [1/2, 1/2, 0], [1/4, 1/4, 1/2]]

    Every weight up to the diagonal is positive, so that it is the softmax of finite scores. (Lambda + I) / 2 has the
    eigenvalue 3/4 twice, with one eigenvector: tokens 2 and 3 attend to themselves alike, and 3 attends to 2.
    """
    return torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.25, 0.25, 0.5]], dtype=torch.float64)


def coupled_row(power: int) -> tuple[float, float, float]:
    """The last row of ((Lambda + I) / 2)^L for `coupled`, L = `power`, in closed form: what a Jordan block leaves.

        ( 1 - q^L - (L / 8) q^(L-1),  (L / 8) q^(L-1),  q^L ),  q = 3/4

    It tends to (1, 0, 0), as B.8 states, with a factor L that no sum of lambda_k^L has.
    """
    other_weights = power / 8 * 0.75 ** (power - 1), 0.75**power
    return 1.0 - sum(other_weights), *other_weights


def lazy_rate(matrix: Matrix) -> float:
    """max_{i>=2} (1 + Lambda_ii) / 2: the rate at which (Lambda + I) / 2 loses what is not on token 1 (Proposition 5.2)."""
    return float(spectra.second_eigenvalue(spectra.lazy(matrix)))


def first_token_distance(matrix: Matrix, power: int) -> float:
    """max_i sum_j |(K^L)_ij - 1[j = 1]| / 2 for K = (Lambda + I) / 2, L = `power`: how far every row is from token 1 alone."""
    return float(torch.linalg.matrix_power(spectra.lazy(matrix), power)[:, 1:].sum(-1).amax())


def remainder_bound(matrix: Matrix, power: int) -> float:
    """1 - (K^L)_{n,1} <= sum_{k<=n-2} binom(L, k) rho^{L-k} nu^k, rho = `lazy_rate`, nu the largest row sum below the diagonal.

    K without token 1 is D + N, D diagonal and N strictly triangular with N^{n-1} = 0; n tokens. Holds with ties on the diagonal
    too, where the rest falls as L^k rho^L; tends to 0 for rho < 1.
    """
    among_others = spectra.lazy(matrix)[1:, 1:]
    rho, nu = lazy_rate(matrix), float(among_others.tril(-1).sum(-1).amax())
    terms = [
        _log_binomial(power, k) + (power - k) * math.log(rho) + (k * math.log(nu) if k else 0.0)
        for k in range(min(power, len(matrix) - 2) + 1)
        if k == 0 or nu > 0.0
    ]
    return math.exp(min(float(torch.tensor(terms, dtype=torch.float64).logsumexp(0)), 700.0))


def _log_binomial(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def theorem_51_row(matrix: Matrix, blocks: int) -> Float[Tensor, " key"]:
    """Theorem 5.1's bound for every token where all L = `blocks` patterns are `matrix`, sigma_psi = beta_1 = beta_2 = 1 and
    beta_3^{1/L} = 4, Proposition 5.2's constants: ( [(Lambda + I) / 2]^L )_{n,i}."""
    constant = paths.proof_constant(sigma_psi=1.0, beta_2=[1.0] * blocks, beta_3=4.0**blocks)
    return constant * paths.path_row([paths.proof_edges(matrix, beta_1=1.0)] * blocks)
