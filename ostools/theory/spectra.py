"""Lemmas B.6 and B.7, Proposition 5.2: row-stochastic lower-triangular matrices, their products and their powers.

The eigenvalues of a triangular matrix are its diagonal: of a causal pattern A, how much each token attends to itself. Token 1
attends to nothing else, so that 1 is always one of them, and the largest, since rows sum to 1 (Lemma B.6). It is simple
if and only if A_ii < 1 for every i >= 2; the paper's condition, two non-zero entries in each later row, gives that. The
diagonal of a product of triangular matrices is the product of the diagonals, and
rows still sum to 1 (Lemma B.7). If 1 is simple, powers tend to the matrix that has all its mass on token 1 (Proposition 5.2),
what is left elsewhere falling by the second largest eigenvalue each time. Positions are 0..n-1 here.

Source: Barbero et al. 2024 (arXiv 2406.04267), section 5 and appendix B.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from jaxtyping import Float
from torch import Tensor

Stochastic = Float[Tensor, "*head query key"]


def eigenvalues(matrix: Stochastic) -> Float[Tensor, "*head pos"]:
    """All of them, by position: the diagonal, exactly, because the matrix is triangular."""
    return matrix.diagonal(dim1=-2, dim2=-1)


def second_eigenvalue(matrix: Stochastic) -> Float[Tensor, "*head"]:
    """max_{i>=2} A_ii, the largest besides the first token's: the rate at which powers lose the mass that is not on token 1."""
    return eigenvalues(matrix)[..., 1:].amax(-1)


def multiplicity(matrix: Stochastic, rounding: float = 0.0) -> Float[Tensor, "*head"]:
    """Multiplicity of the eigenvalue 1; 1.0 is Lemma B.6's simple one. `rounding`: how far below 1 it may lie."""
    return (eigenvalues(matrix) >= 1.0 - rounding).sum(-1).to(matrix.dtype)


def defect(matrix: Stochastic) -> float:
    """Distance from row-stochastic and lower-triangular: the largest error of a row's sum, of a weight below
    0 and of a weight above the diagonal."""
    rows = (matrix.sum(-1) - 1.0).abs().amax()
    return float(torch.stack([rows, -matrix.amin(), matrix.triu(1).abs().amax()]).amax())


def lazy(matrix: Stochastic) -> Stochastic:
    """(A + I) / 2: half of the mass stays where it is, as the skip connection has it. Its eigenvalues are (1 + A_ii) / 2."""
    return (matrix + torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)) / 2.0


def upward(layers: Iterable[Float[Tensor, "query key"]]) -> Iterator[Float[Tensor, "query key"]]:
    """A^(l-1) ... A^(0) for l = 1, 2, ...: where the first l blocks' mass comes from."""
    product = None
    for layer in layers:
        product = layer if product is None else layer @ product
        yield product


def downward_row(layers: list[Float[Tensor, "query key"]]) -> list[Float[Tensor, " key"]]:
    """( A^(L-1) ... A^(l) )_{n,:} for l = 0, ..., L: from which positions of layer l the last token's mass comes."""
    row = torch.eye(layers[0].shape[-1], dtype=layers[0].dtype, device=layers[0].device)[-1]
    rows = [row]
    for layer in reversed(layers):
        row = row @ layer
        rows.append(row)
    return rows[::-1]


def remainders(matrix: Float[Tensor, "query key"], powers: int) -> Float[Tensor, " power"]:
    """1 - (A^k)_{n,1} for k = 1, ..., powers: what the last token has left elsewhere than on token 1.

    Summed over tokens 2..n, and not subtracted from 1: small remainders keep their digits. O(n^2) a power.
    """
    among_others = matrix[1:, 1:]
    row, sums = among_others[-1], []
    for _ in range(powers):
        sums.append(row.sum())
        row = row @ among_others
    return torch.stack(sums)


def effective_tokens(rows: Float[Tensor, "*row key"]) -> Float[Tensor, "*row"]:
    """exp(entropy) of each row: over how many tokens its mass is spread."""
    return torch.special.entr(rows).sum(-1).exp()
