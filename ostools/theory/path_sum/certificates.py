"""Spectral norms from above, proved by repeated squaring: matrix products alone, in batches, on any device.

A_0 = M and A_{s+1} = A_s A_s^T / c_s with c_s = ||A_s||_F^2, so that

    ||A_s||_2^2 = c_s ||A_{s+1}||_2      and      ||M||_2 = c_0^(1/2) c_1^(1/4) ... ( c_s ||A_{s+1}||_2 )^(1/2^(s+1)):

what is known of ||A_s||_2 to within a factor f gives ||M||_2 to within f^(1/2^s), and large singular values grow away from
small ones. Of the positive semidefinite P = A_s, with a unit vector v, theta = v^T P v and r = ||P v - theta v||,

    theta <= ||P||_2 <= largest eigenvalue of ( theta  r ; r  z ),    z^2 = ||P||_F^2 - theta^2

because what is orthogonal to v has no larger norm than z. Squaring ends where both sides prove the norm within `TOLERANCE`.

Rounding: with u the unit roundoff and gamma_k = k u / (1 - k u), forming A A^T of rows of length k loses at most
gamma_k ||A||_F^2 in Frobenius norm (Higham, Accuracy and Stability of Numerical Algorithms, section 3.5), for every order of
summation. Each step's loss is in the bound. The proof is about the numbers handed in. float32 is tried first; what it cannot
prove within the tolerance is proved in float64.
"""

from __future__ import annotations

import math
from collections import Counter

import torch
from jaxtyping import Float
from torch import Tensor

Matrices = Float[Tensor, "batch rows cols"]
Values = Float[Tensor, " batch"]

TOLERANCE = 1e-3
"""A proved norm is at most so much larger than the exact one, in shares of it."""
SQUARINGS = {torch.float32: 9, torch.float64: 14}
"""Products at most in either precision: k equal singular values ask for log2(ln k / 0.004) of them, 11 where k = 3000."""
NEAR = 20
"""A largest entry within 2^NEAR of 1 is left as it is: its squares are far from both ends of float32."""
FIRST_LOOK = 4
"""Squarings before the bounds are first compared."""
OUTCOMES = ("float32", "float64", "beyond 0.1%")
"""How each norm was proved; the last where rounding allows for no better bound."""


def unit_roundoff(dtype: torch.dtype) -> float:
    """u: half the distance from 1 to the next number."""
    return torch.finfo(dtype).eps / 2


def gamma(terms: int, dtype: torch.dtype) -> float:
    """k u / (1 - k u): what a sum of k products loses at most, in shares of the sum of their sizes; infinite where k u >= 1."""
    share = terms * unit_roundoff(dtype)
    return share / (1 - share) if share < 1 else math.inf


def certified_norms(matrices: Matrices, tally: Counter[str] | None = None) -> Values:
    """A proved upper bound of each ||M||_2 in float64, within 0.1% of it but where rounding allows for no more.

    `tally` counts the `OUTCOMES`. What is not finite stays so. Cost: 2 k^2 m for the first product and 2 k^3 for each of some
    three to six more, k = min(rows, cols), m the other side; in float32 where that is enough.
    """
    if not matrices.numel():
        return matrices.new_zeros(len(matrices), dtype=torch.float64)
    size = torch.maximum(matrices.amax((-2, -1)), -matrices.amin((-2, -1)))
    # Powers of two change no digit: a largest entry far from 1 is brought to [1/2, 1): its squares neither vanish nor overflow.
    exponent = torch.frexp(torch.where(torch.isfinite(size), size, 1.0)).exponent
    exponent = torch.where(exponent.abs() <= NEAR, 0, exponent)
    unit = scaled(matrices, -exponent) if bool(exponent.any()) else matrices
    unit = unit if matrices.shape[-2] <= matrices.shape[-1] else unit.mT
    bounds, proved = bounds_in(unit, torch.float32)
    outcome = torch.where(proved, 0, 2)
    left = (~proved & torch.isfinite(size) & (size > 0)).nonzero()[:, 0]
    if len(left):
        again, proved = bounds_in(unit[left], torch.float64)
        bounds[left] = torch.minimum(bounds[left], again)
        outcome[left[proved]] = 1
    outcome = torch.where(size == 0, 0, outcome)
    if tally is not None:
        tally.update({name: int((outcome == index).sum()) for index, name in enumerate(OUTCOMES)})
    # To scale a bound back may round it, where it ends among the subnormal numbers.
    back = torch.where(exponent == 0, bounds, torch.nextafter(scaled(bounds, exponent), bounds.new_tensor(math.inf)))
    return torch.where(size == 0, 0.0, torch.where(torch.isfinite(size), back, size.double()))


def scaled(values: Tensor, exponent: Tensor) -> Tensor:
    """values 2^exponent in two steps, because 2^exponent itself may overflow."""
    half = exponent // 2
    for part in (half, exponent - half):
        factor = torch.ldexp(torch.ones_like(part, dtype=values.dtype), part)
        values = values * factor.reshape(factor.shape + (1,) * (values.dim() - 1))
    return values


def bounds_in(unit: Matrices, dtype: torch.dtype) -> tuple[Values, Tensor]:
    """Upper bounds from products in `dtype`, float64, and which of them are proved to be within `TOLERANCE`.

    `unit`: no more rows than columns, the largest entry within 2^NEAR of 1.
    """
    if math.isinf(gamma(sum(unit.shape[1:]) + 8, dtype)):  # sums too long for anything to be known of them
        return unit.new_full(unit.shape[:1], math.inf, dtype=torch.float64), torch.zeros_like(
            unit[:, 0, 0], dtype=torch.bool
        )
    matrix, divisors = _squared(unit.to(dtype), [])
    cast = 0.0 if unit.dtype == dtype else unit_roundoff(dtype)
    # ||M||_F, and by how much the cast may have changed ||M||_2.
    found = divisors[0].sqrt() * (1 + 2 * gamma(sum(unit.shape[1:]) + 8, dtype) + cast)
    cast_off = cast * found
    proved, here = torch.zeros_like(found, dtype=torch.bool), torch.arange(len(unit), device=unit.device)
    for squarings in range(2, SQUARINGS[dtype] + 1):
        matrix, divisors = _squared(matrix, divisors)
        if squarings < FIRST_LOOK:
            continue
        lower, upper = _sides(matrix, divisors, unit.shape[-1])
        lower, upper = lower - cast_off[here], upper + cast_off[here]
        found[here] = torch.minimum(found[here], upper)
        tight = upper <= lower * (1 + TOLERANCE)
        proved[here[tight]] = True
        rest = (~tight).nonzero()[:, 0]
        if not len(rest):
            break
        if len(rest) < len(here):
            here, matrix, divisors = here[rest], matrix[rest], [one[rest] for one in divisors]
    return found, proved


def _squared(matrix: Matrices, divisors: list[Values]) -> tuple[Float[Tensor, "batch rows rows"], list[Values]]:
    """A A^T / c with c = ||A||_F^2, to rounding, its trace; and c with those before it."""
    product = torch.bmm(matrix, matrix.mT)
    trace = product.diagonal(dim1=1, dim2=2).sum(1)
    trace = torch.where(trace > 0, trace, 1.0)
    return product.div_(trace[:, None, None]), [*divisors, trace.double()]


def _sides(power: Matrices, divisors: list[Values], columns: int) -> tuple[Values, Values]:
    """Bounds of ||M||_2 from below and above: A_s = `power`, and every c before it."""
    below, above = _of_the_last(power)
    once = 4 * unit_roundoff(torch.float64)
    for step in reversed(range(len(divisors))):
        # ||A_step||^2 = c ||A_step A_step^T / c||; what stands in the place of that product is off by `formed` at most.
        formed = 2 * gamma((columns if step == 0 else len(power[0])) + 8, power.dtype)
        slack = 0.0 if step == len(divisors) - 1 else formed
        below = (divisors[step] * (below - slack).clamp_min(0.0)).sqrt() * (1 - once)
        above = (divisors[step] * (above + slack)).sqrt() * (1 + once)
    return below, above


def _of_the_last(power: Matrices) -> tuple[Values, Values]:
    """Bounds of ||P||_2, P the exact A A^T / c for which `power` stands: theta, and the 2 x 2 eigenvalue.

    Of a Frobenius norm of 1 at most, forming P, a product with v, and v^T P v lose some gamma_k each.
    """
    lost = 6 * gamma(len(power[0]) + 8, power.dtype)
    most = power.diagonal(dim1=1, dim2=2).argmax(1)
    column = power[torch.arange(len(power), device=power.device), :, most]
    moved = torch.bmm(power, _unit(column)[:, :, None])[:, :, 0]
    vector = _unit(moved)
    moved = torch.bmm(power, vector[:, :, None])[:, :, 0]
    quotient = (moved * vector).sum(1, keepdim=True)
    residual = torch.linalg.vector_norm(moved - quotient * vector, dim=1).double() + 2 * lost
    below, theta = quotient[:, 0].double() - lost, quotient[:, 0].double() + lost
    size = torch.linalg.vector_norm(power, dim=2).double().square().sum(1).sqrt()
    rest = ((size + lost).square() - below.clamp_min(0.0).square()).clamp_min(0.0).sqrt()
    return below, (theta + rest) / 2 + ((theta - rest).square() / 4 + residual.square()).sqrt()


def _unit(vectors: Float[Tensor, "batch rows"]) -> Float[Tensor, "batch rows"]:
    """Of length 1, to rounding; zeros stay zeros."""
    length = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    return vectors / length.clamp_min(torch.finfo(vectors.dtype).tiny)
