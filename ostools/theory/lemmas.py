"""The paper's lemmas as functions that read as their statements: each side of an equation, each
bound, on numbers.

Lemmas B.1, 4.1 / B.2 and B.4: what one more score, or a little noise on the first ones, does to a
long softmax. The paper's delta is the L1 distance of two distributions, without the factor 1/2. Its
hypotheses are needed. B.1 and B.2 state bounded scores (Lemma 4.1, the informal B.2, leaves that
out): with x_i = -2 log i the first tokens keep their mass for ever, and whatever noise is on them
with it. B.4 states even n: at odd ones its sequences hold different numbers of ones. The bounds
here are not in the paper: they are what its proofs give when the constants are kept, so that a
limit can be checked at every n.

Lemmas B.6 and B.7 and Proposition 5.2 / B.8: row-stochastic lower-triangular matrices, their
products and their powers. The eigenvalues of a triangular matrix are its diagonal: of a causal
pattern A, how much each token attends to itself. Token 1 attends to nothing else, so that 1 is
always one of them, and the largest, since rows sum to 1 (B.6). It is simple if and only if A_ii < 1
for every i >= 2. The paper asks in B.6 and B.8 that "each row except the first" has at least two
non-zero entries. Without entries below 0 that gives A_ii < 1. It is more than is needed: a later
row may attend to token 1 alone. A = I breaks both conditions, and has the limit I. Softmax rows
meet them in exact arithmetic, since every weight is positive; sharp scores lose that to rounding.
The diagonal of a product is the product of the diagonals, and rows still sum to 1 (B.7). If 1 is
simple, powers tend to the matrix that has all its mass on token 1, what is left elsewhere falling
by the second largest eigenvalue each time. Of (A + I) / 2 B.8's proof says that it "with our
assumptions is diagonalizable". That does not follow (the tests have a pattern that is not). The
limit needs no eigenvectors: without token 1 the matrix is triangular with a diagonal below 1, and
the powers of such a matrix vanish. Positions are 0..n-1 here.

Proposition 6.1 / B.9: without positions and without a causal mask, attention averages over the
sequence, and sequences with the same ratio of token types give every token of a type the same
representation, at any depth and with any weights. The ratio is that of ALL tokens: one BOS, one
token of a prompt breaks it. It holds per TYPE: the last tokens of "10" and "0011" are of different
types (docs/fidelity.md). Corollary 6.2 / B.10: what a model says first is a function of its last
token's representation, so that two prompts with the same representation in the dtype at hand get
the same answer. That is so of the first generated token only: later ones read caches that may
differ.

Theorem 4.2 without a limit: if EVERY layer has a window of w keys, positions are relative (or there
are none) and no key is seen from everywhere (a sink), then v_i^(l) is a function of the l (w - 1) +
1 tokens up to i. On a repeated token it has stopped changing from that many copies on, whatever the
weights: exactly. The condition is tight for generic weights.

Source: Barbero et al. 2024 (arXiv 2406.04267), sections 4 to 6 and appendix B.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ostools.ground import InputError
from ostools.theory import path_sum

Scores = Float[Tensor, "*batch pos"]
Scalars = Float[Tensor, "*batch"]

ALTERNATING = 2.0 * (math.e - 1.0) / (math.e + 1.0)
"""Lemma B.4's delta at every even n: 0.924..."""


def inserted(
    other_scores: Float[Tensor, "*batch other"], token: Scalars, last: Scalars
) -> tuple[Scores, Float[Tensor, "*batch pos_and_copy"]]:
    """x = (a_1, ..., a_{n-1}, c) and x* = (a_1, ..., a_{n-1}, b, c), with `other_scores` a, `token`
    b, `last` c (Lemma B.1).
    """
    b, c = token[..., None], last[..., None]
    return torch.cat([other_scores, c], dim=-1), torch.cat([other_scores, b, c], dim=-1)


def decrease_bound(spread: float, n: int) -> float:
    """softmax(x)_n - softmax(x*)_{n+1} = e^b e^c / (Z (Z + e^b)) <= e^{2s} / (n (n + 1)), for
    scores within `spread` s.

    Lemma B.1's limit with its rate: each of the n (and n + 1) terms of Z (and Z + e^b) is at least
    e^{-s} times the largest.
    """
    return math.exp(2.0 * spread) / (n * (n + 1))


def prefix_total_variation(
    x: Float[Tensor, " pos"], x_star: Float[Tensor, " pos"], lengths: Sequence[int]
) -> Float[Tensor, " length"]:
    """delta_n = sum_{i<=n} |softmax(x_1..n)_i - softmax(x*_1..n)_i| for every n of `lengths`, in
    one pass (Lemma 4.1 / B.2).

    Past the last place where the two differ only the denominators do, so that those terms are one
    number. O(N + lengths * k) for k places up to there. Raises `InputError` for lengths out of
    1..N.
    """
    if not lengths or min(lengths) < 1 or max(lengths) > len(x):
        raise InputError(
            f"total variation: expected lengths from 1 to {len(x)}, found {list(lengths)[:4]}"
        )
    ends = torch.tensor(list(lengths), device=x.device)
    log_z, log_z_star = x.logcumsumexp(0)[ends - 1], x_star.logcumsumexp(0)[ends - 1]
    differ = torch.nonzero(x != x_star)
    k = int(differ[-1]) + 1 if len(differ) else 0
    y, y_star = (x[:k] - log_z[:, None]).exp(), (x_star[:k] - log_z_star[:, None]).exp()
    present = torch.arange(k, device=x.device) < ends[:, None]
    delta = ((y - y_star).abs() * present).sum(-1)
    # e^{x_i} / Z - e^{x_i} / Z* = -(e^{x_i} / Z) (e^{log Z - log Z*} - 1)
    log_rest = torch.cat([x.new_full((1,), -torch.inf), x[k:].logcumsumexp(0)])[
        (ends - k).clamp_min(0)
    ]
    return delta + (log_rest - log_z).exp() * torch.expm1(log_z - log_z_star).abs()


def first_places_bound(places: int, noise: float, spread: float, n: int) -> float:
    """delta_n <= 2 k e^s (e^eps - 1) / n, for noise in [0, eps] on the first k places and scores
    within `spread` s.

    Lemma 4.1 / B.2 for Figure 9's noise, with its rate: y_i <= e^s / n in the bound above, whose
    denominator is at least 1.
    """
    return 2.0 * min(places, n) * math.exp(spread) * math.expm1(noise) / n


def alternating(n: int) -> tuple[Float[Tensor, " pos"], Float[Tensor, " pos"]]:
    """(0, 1, 0, 1, ...) and (1, 0, 1, 0, ...) of even length n, float64: sequences that never come
    closer (Lemma B.4).

    Raises `InputError` for odd n, where one has a 1 more than the other and delta is another
    number.
    """
    if n < 2 or n % 2:
        raise InputError(
            f"Lemma B.4: expected an even length of at least 2, found {n}: at odd lengths one of "
            f"the two alternating sequences holds one more 1, and delta is not {ALTERNATING:.3f}"
        )
    x = torch.arange(n, dtype=torch.float64) % 2
    return x, 1.0 - x


Matrix = Float[Tensor, "query key"]
Stochastic = Float[Tensor, "*head query key"]


def eigenvalues(matrix: Stochastic) -> Float[Tensor, "*head pos"]:
    """All of them, by position: the diagonal, exactly, because the matrix is triangular."""
    return matrix.diagonal(dim1=-2, dim2=-1)


def second_eigenvalue(matrix: Stochastic) -> Float[Tensor, "*head"]:
    """max_{i>=2} A_ii, the largest besides the first token's: the rate at which powers lose the
    mass that is not on token 1.
    """
    return eigenvalues(matrix)[..., 1:].amax(-1)


def multiplicity(matrix: Stochastic, rounding: float = 0.0) -> Float[Tensor, "*head"]:
    """Multiplicity of the eigenvalue 1; 1.0 is Lemma B.6's simple one. `rounding`: how far below 1
    it may lie.
    """
    return (eigenvalues(matrix) >= 1.0 - rounding).sum(-1).to(matrix.dtype)


def defect(matrix: Stochastic) -> float:
    """Distance from row-stochastic and lower-triangular: the largest error of a row's sum, of a
    weight below 0 and of a weight above the diagonal."""
    rows = (matrix.sum(-1) - 1.0).abs().amax()
    return float(torch.stack([rows, -matrix.amin(), matrix.triu(1).abs().amax()]).amax())


def lazy(matrix: Stochastic) -> Stochastic:
    """(A + I) / 2: half of the mass stays where it is, as the skip connection has it. Its
    eigenvalues are (1 + A_ii) / 2.
    """
    return (matrix + torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)) / 2.0


def upward(layers: Iterable[Matrix]) -> Iterator[Matrix]:
    """A^(l-1) ... A^(0) for l = 1, 2, ...: where the first l blocks' mass comes from."""
    product = None
    for layer in layers:
        product = layer if product is None else layer @ product
        yield product


def remainders(matrix: Matrix, powers: int) -> Float[Tensor, " power"]:
    """1 - (A^k)_{n,1} for k = 1, ..., powers: what the last token has left elsewhere than on token
    1.

    Summed over tokens 2..n, and not subtracted from 1: small remainders keep their digits. O(n^2) a
    power.
    """
    among_others = matrix[1:, 1:]
    row, sums = among_others[-1], []
    for _ in range(powers):
        sums.append(row.sum())
        row = row @ among_others
    return torch.stack(sums)


def causal_softmax(scores: Matrix) -> Matrix:
    """Row i: softmax over the scores of keys j <= i. Row-stochastic and lower-triangular."""
    hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)
    return scores.masked_fill(hidden, -torch.inf).softmax(-1)


def eigenvectors(matrix: Matrix, eigenvalue: float = 1.0) -> int:
    """The dimension of { x : A x = lambda x }, out of the singular values of A - lambda I, whatever
    A's shape.

    For lambda = 1 of a row-stochastic A this IS the multiplicity (Lemma B.6): its powers are
    bounded, so that 1 has no Jordan block. Another eigenvalue may have fewer eigenvectors than its
    multiplicity.
    """
    defects = torch.linalg.svdvals(matrix - eigenvalue * torch.eye(len(matrix), dtype=matrix.dtype))
    return int((defects <= 1e-12 * len(matrix)).sum())


def first_token_distance(matrix: Matrix, power: int) -> float:
    """max_i sum_j |(K^L)_ij - 1[j = 1]| / 2 for K = (Lambda + I) / 2, L = `power`: how far every
    row is from token 1 alone.
    """
    return float(torch.linalg.matrix_power(lazy(matrix), power)[:, 1:].sum(-1).amax())


def theorem_51_row(matrix: Matrix, blocks: int) -> Float[Tensor, " key"]:
    """Theorem 5.1's bound for every token where all L = `blocks` patterns are `matrix`, sigma_psi =
    beta_1 = beta_2 = 1 and beta_3^{1/L} = 4, Proposition 5.2's constants: ( [(Lambda + I) / 2]^L
    )_{n,i}."""
    constant = path_sum.proof_constant(sigma_psi=1.0, beta_2=[1.0] * blocks, beta_3=4.0**blocks)
    return constant * path_sum.path_row([path_sum.proof_edges(matrix, beta_1=1.0)] * blocks)


Tokens = Int[Tensor, " pos"]


def same_ratio(first: Tokens, second: Int[Tensor, " other"]) -> bool:
    """Whether every type is the same part of both sequences: Proposition 6.1's hypothesis about
    them.
    """
    size = int(max(first.max(), second.max())) + 1
    counts = [torch.bincount(tokens, minlength=size) for tokens in (first, second)]
    return bool((counts[0] * len(second) == counts[1] * len(first)).all())


def type_spread(
    representations: Sequence[Float[Tensor, "_ d_model"]], tokens: Sequence[Int[Tensor, " _"]]
) -> float:
    """max ||v_i - v_j|| / ||v_j|| over all tokens i of all sequences, v_j the first token met of
    the same type.

    0 (to rounding) is what Proposition 6.1 says of sequences with the same ratio.
    """
    vectors, types = torch.cat(list(representations)), torch.cat(list(tokens))
    first_indices = torch.stack([(types == kind).nonzero()[0, 0] for kind in types])
    return float(
        (
            (vectors - vectors[first_indices]).norm(dim=-1) / vectors[first_indices].norm(dim=-1)
        ).amax()
    )


def identical_next(vectors: Float[Tensor, "pos d"]) -> Bool[Tensor, " pair"]:
    """Whether rows n and n + 1 are the same numbers, bit for bit up to the sign of zero: nothing
    can tell the pair apart.
    """
    return (vectors[1:] == vectors[:-1]).all(-1)


def distinct(vectors: Float[Tensor, "pos d"]) -> int:
    """Number of different rows. There can be at most this many different answers, and this many
    right ones.
    """
    return len(torch.unique(vectors, dim=0))


def second_answers(
    representations: Float[Tensor, "pos d_model"], answers: Float[Tensor, "pos token"]
) -> int:
    """Number of answers beyond one for each different representation: 0 where they are a function
    of it.
    """
    joined = torch.cat([representations.double(), answers.double()], dim=-1)
    return distinct(joined) - distinct(representations)
