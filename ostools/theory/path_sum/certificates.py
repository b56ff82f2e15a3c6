"""Spectral norms from above, proved by one Cholesky factorisation a matrix.

Lanczos steps give a value from below, never a proof. From it comes mu, and mu I - M^T M is factorised: that succeeds only
if mu is above the largest eigenvalue, up to what rounding explains. With u the unit roundoff, gamma_k = k u / (1 - k u), a
Gram matrix of size k from inner products of length m, and A = fl(mu I - fl(M^T M)), success proves

    ||M||_2^2 <= mu + gamma_{k+1} / (1 - gamma_{k+1}) tr A + gamma_m ||M||_F^2 + u max |A_ii|

(the factorisation's backward error, the forming of M^T M, the subtraction on the diagonal). The proof is about the numbers
handed in, and holds for every order of summation, on any device that rounds as IEEE 754 does. Source: Rump, Verification of
positive definiteness, BIT 46 (2006); Higham, Accuracy and Stability of Numerical Algorithms, theorem 10.3 and section 3.5.
"""

from __future__ import annotations

from collections import Counter

import torch
from jaxtyping import Float
from torch import Tensor

Matrices = Float[Tensor, "batch rows cols"]
Values = Float[Tensor, " batch"]

STEPS = 12
"""Lanczos steps at least; k / 12 of them, which cost half a factorisation, in more than 144 dimensions."""
MARGINS = (1.0005, 1.0009)
"""mu is (margin * value from below)^2: the first that succeeds is kept, both prove a norm within 0.1% of the exact one."""
OUTCOMES = ("first try", "second try", "by eigenvalues", "frobenius")
"""How each norm was proved; the last is the Frobenius norm, which nothing needs to prove."""


def unit_roundoff(like: Tensor) -> float:
    """u: half the distance from 1 to the next number."""
    return torch.finfo(like.dtype).eps / 2


def gamma(terms: int, like: Tensor) -> float:
    """k u / (1 - k u): what a sum of k products loses at most, in shares of the sum of their sizes."""
    return terms * unit_roundoff(like) / (1 - terms * unit_roundoff(like))


def certified_norms(matrices: Matrices, tally: Counter[str] | None = None) -> Values:
    """A proved upper bound of each ||M||_2 in float64, within 0.1% of it but where rounding allows for no more.

    Where both margins fail, mu comes from the eigenvalues, and where that fails too the bound is ||M||_F. `tally` counts
    the `OUTCOMES`. What is not finite stays so. Cost: 2 k^2 m for M^T M, k^3 / 3 a factorisation, k = min(rows, cols).
    """
    size = matrices.abs().amax((-2, -1))
    # Powers of two change no digit: M is brought to a largest entry in [1/2, 1), whose squares neither vanish nor overflow.
    exponent = torch.frexp(torch.where(torch.isfinite(size), size, 1.0)).exponent
    unit = _scaled(matrices, -exponent)
    gram = unit @ unit.mT if matrices.shape[-2] <= matrices.shape[-1] else unit.mT @ unit
    squares = certified_eigenvalues(gram.double(), _formed(unit, gram), tally)
    bounds = squares.sqrt() * (1 + 4 * unit_roundoff(squares))
    return torch.where(size == 0, 0.0, torch.where(torch.isfinite(size), _scaled(bounds, exponent), size.double()))


def _scaled(values: Tensor, exponent: Tensor) -> Tensor:
    """values 2^exponent in two steps, because 2^exponent itself may overflow."""
    half = exponent // 2
    for part in (half, exponent - half):
        factor = torch.ldexp(torch.ones_like(part, dtype=values.dtype), part)
        values = values * factor.reshape(factor.shape + (1,) * (values.dim() - 1))
    return values


def _formed(unit: Matrices, gram: Float[Tensor, "batch k k"]) -> Values:
    """gamma_m ||M||_F^2, what forming the Gram matrix loses in norm, and what underflows in it; float64."""
    inner = unit.numel() // len(unit) // gram.shape[-1] if len(unit) else 1
    total = gram.diagonal(dim1=1, dim2=2).double().sum(1) / (1 - 2 * gamma(inner + gram.shape[-1], unit))
    return gamma(inner, unit) * total + 2 * unit[0].numel() * torch.finfo(unit.dtype).tiny


def certified_eigenvalues(
    gram: Float[Tensor, "batch k k"], formed: Values, tally: Counter[str] | None = None
) -> Values:
    """A proved upper bound of the largest eigenvalue of each positive semidefinite G, given to within `formed` in norm.

    float64. The last resort is the trace: of a positive semidefinite matrix it is the largest bound one would want.
    """
    tally = Counter() if tally is None else tally
    k = gram.shape[-1]
    lower = lanczos(gram.float(), min(k, max(STEPS, k // 12))).double()
    bounds = gram.diagonal(dim1=1, dim2=2).sum(1) * (1 + gamma(k, gram)) + k * formed
    outcome = torch.full_like(lower, len(OUTCOMES) - 1)
    for attempt in range(len(OUTCOMES) - 1):
        left = (outcome == len(OUTCOMES) - 1).nonzero()[:, 0]
        if not len(left):
            break
        some = gram if attempt == 0 else gram[left]
        mu = lower[left] * MARGINS[attempt] ** 2 if attempt < len(MARGINS) else _largest(some) * (1 + 1e-6)
        proved, holds = _factorised(some, mu, formed[left])
        held = left[holds]
        bounds[held], outcome[held] = proved[holds], float(attempt)
    tally.update({name: int((outcome == index).sum()) for index, name in enumerate(OUTCOMES)})
    return bounds


def _factorised(gram: Float[Tensor, "batch k k"], mu: Values, formed: Values) -> tuple[Values, Tensor]:
    """mu with all that rounding may hide, and where the factorisation of mu I - G proves it."""
    k, diagonal = gram.shape[-1], gram.diagonal(dim1=1, dim2=2)
    shifted = mu[:, None] - diagonal
    matrix = -gram
    matrix.diagonal(dim1=1, dim2=2).copy_(shifted)
    factor, info = torch.linalg.cholesky_ex(matrix)
    share = gamma(k + 1, gram)
    backward = share / (1 - share) * shifted.sum(1)
    subtracted = unit_roundoff(gram) * shifted.abs().amax(1)
    # Five sums of positive numbers, each rounded once, and the trace's own k.
    proved = (mu + backward + formed + subtracted) * (1 + gamma(k + 8, gram))
    finite = torch.isfinite(factor.diagonal(dim1=1, dim2=2)).all(1) & torch.isfinite(proved)
    return proved, (info == 0) & finite


def _largest(gram: Float[Tensor, "batch k k"]) -> Values:
    """The largest eigenvalue, from below or above by rounding; not a number where there is one in G."""
    finite = torch.isfinite(gram).all(-1).all(-1)
    values = torch.linalg.eigvalsh(torch.where(finite[:, None, None], gram, 0.0))[:, -1]
    return torch.where(finite, values, torch.nan)


def lanczos(gram: Float[Tensor, "batch k k"], steps: int) -> Values:
    """The largest Ritz value after so many Lanczos steps from one random vector: from below, but for rounding."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(gram.shape[-1], generator=generator, dtype=torch.float64).to(gram)
    vector = (start / start.norm()).expand(len(gram), -1)
    before, coupling = torch.zeros_like(vector), gram.new_zeros(len(gram), 1)
    ritz = gram.new_zeros(len(gram), steps, steps)
    for step in range(steps):
        # G is symmetric, and a batch of rows from the left is ten times faster than one of columns from the right.
        moved = torch.bmm(vector[:, None], gram)[:, 0] - coupling * before
        ritz[:, step, step] = (moved * vector).sum(1)
        moved = moved - ritz[:, step, step, None] * vector
        coupling = moved.norm(dim=1, keepdim=True)
        # Nothing new is met where the residual is rounding: the matrix has few directions.
        coupling = torch.where(coupling > 10 * unit_roundoff(gram) * ritz[:, 0, 0, None], coupling, 0.0)
        before, vector = vector, torch.where(coupling > 0, moved / coupling, 0.0)
        if step + 1 < steps:
            ritz[:, step, step + 1] = ritz[:, step + 1, step] = coupling[:, 0]
    return _largest(ritz)
