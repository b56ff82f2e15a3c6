"""Estimated sensitivity: norms of every J_i out of a few dozen passes, with intervals, where d_model rows are too many.

Cost: 4 c passes for c `directions`, then c, 2c, 4c, ... more until the wanted error is reached, whatever d_model and the
length of the prompt; n d_model numbers of memory for every one of the last. Exact sensitivity costs d_model passes,
n d_model^2 numbers and n singular value decompositions.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ostools.ground.errors import InputError
from ostools.measure.jacobian.exact import NORM_BUDGET
from ostools.measure.jacobian.routes import Route, Tangents, pulled
from ostools.theory.path_sum.operators import chunks
from ostools.theory.statistics import estimates

PerToken = Float[Tensor, " pos"]

# Exact numbers need no interval: they are worth this many times the passes of an estimate.
_WORTH = 16
# Rounding of <g, push(t)> = <pull(g), t>, relative to the largest such product; float32 stays below 1e-5.
_ADJOINT = 1e-3


@dataclass(frozen=True)
class Estimates:
    """Norms of every J_i, float64 on the CPU, one a place of the route.

    `frobenius`: its square is unbiased at every look. [`frobenius_lower`, `frobenius_upper`] holds ||J_i||_F with
    probability `confidence`, nominally. `operator_lower` <= ||J_i||_2 always (up to rounding); ||J_i||_2 <= `operator_upper`
    with probability `confidence` or more, whatever J_i is. Every confidence is per token: for one statement about all n
    tokens ask for 1 - (1 - confidence) / n. `relative_error`: the largest half-width of a Frobenius interval over its
    estimate, reached (it may miss the one wanted). `passes`: rows pulled and pushed; exact sensitivity takes d_model.
    """

    frobenius: PerToken
    frobenius_lower: PerToken
    frobenius_upper: PerToken
    operator_lower: PerToken
    operator_upper: PerToken
    confidence: float
    relative_error: float
    passes: int


def estimate_norms(
    route: Route,
    d_model: int,
    *,
    relative_error: float = 0.1,
    confidence: float = 0.95,
    max_passes: int | None = None,
    directions: int | None = None,
    rows_on_disk: int | None = None,
    generator: torch.Generator,
) -> Estimates:
    """||J_i||_F and ||J_i||_2 of every Jacobian that the route knows, through one shared basis Q of output directions.

    1. Basis: Q spans the products of c = `directions` Gaussian vectors with sum_i J_i J_i^T / ||J_i||_F^2 (c pulls, c pushes;
    the norms are estimated from the pulls). 2. Q^T J_i, exactly (c pulls). 3. The rest R_i = (I - Q Q^T) J_i from fresh
    Gaussian cotangents, independent of Q: c of them, then as many again as there are, until every token's Frobenius
    interval is within `relative_error` of its estimate, or doubling would exceed `max_passes` (default: 16 c, and at most
    d_model / 2).

    Looking again must not cost coverage: a look's intervals may miss with half of the level that the looks before it left
    of 1 - confidence (with all of it, at the last that `max_passes` allows). The probability that ANY look misses is at
    most the sum, the whole level, and so is that of the look at which it happens to stop.

    `rows_on_disk`: so many rows at a time are in memory, the others in temporary files (`pulled`).

    Raises `InputError` for settings that cannot be, and where pull and push are not adjoint or not finite.
    Source: Halko, Martinsson, Tropp 2011 (the range finder); Meyer, Musco, Musco, Woodruff 2021 (a part of low rank exactly,
    the rest at random); the intervals: `ostools.theory.statistics.estimates`.
    """
    directions = default_directions(d_model) if directions is None else directions
    max_passes = default_passes(d_model, directions) if max_passes is None else max_passes
    _check(d_model, relative_error, confidence, max_passes, directions)
    basis = _basis(route, _gaussian(directions, d_model, generator), rows_on_disk)
    with pulled(route, basis, rows_on_disk) as inside:
        captured = estimates.gram(inside).cpu()
    with ExitStack() as held:

        def fresh(count: int) -> Tangents:
            cotangents = _gaussian(count, d_model, generator).to(basis.device)
            return held.enter_context(pulled(route, estimates.complement(cotangents, basis), rows_on_disk))

        rows, left = [fresh(directions)], 1.0 - confidence
        while True:
            drawn = sum(map(len, rows))
            is_last = 3 * directions + 2 * drawn > max_passes
            level = left if is_last else left / 2
            found = _norms(captured, rows, level, confidence)
            if is_last or found.relative_error <= relative_error:
                return found
            rows.append(fresh(drawn))
            left -= level


class Choice(NamedTuple):
    """What `method="auto"` means: the method, and the reason in words."""

    method: Literal["exact", "estimate"]
    reason: str


def choose_method(d_model: int, *, exact_fits: bool, directions: int | None = None) -> Choice:
    """Exact, unless it does not fit into memory or takes more than 16 times the passes that the estimate needs.

    Passes: d_model against four for every direction of the basis, both times the same pass; with the default directions the
    line runs at d_model 1024. `exact_fits`: the exact run has a plan within the memory, its rows in a file if need be.
    """
    passes = first_passes(default_directions(d_model) if directions is None else directions)
    if not exact_fits:
        return Choice("estimate", "the exact Jacobians do not fit into the memory")
    if d_model > _WORTH * passes:
        return Choice("estimate", f"{passes} passes at first in place of {d_model}")
    return Choice("exact", f"{d_model} passes are at most {_WORTH} times the estimate's {passes}")


def default_directions(d_model: int) -> int:
    """Directions of the shared basis: 16 (the first look costs 64 passes), fewer below d_model 128, up to 32 from 4096 on."""
    return min(d_model // 8, max(16, min(32, d_model // 128)))


def first_passes(directions: int) -> int:
    """Pulls and pushes up to the first look: the range finder, there and back, Q^T J_i, and as many fresh cotangents."""
    return 4 * directions


def default_passes(d_model: int, directions: int) -> int:
    """The most passes: four times those of the first look, where that is still half of what exact sensitivity takes."""
    return max(first_passes(directions), min(4 * first_passes(directions), d_model // 2))


def most_rows(d_model: int) -> int:
    """Rows of n d_model numbers that an estimate with the default settings holds at most: the last look's cotangents."""
    return 8 * default_directions(d_model)


def check_settings(relative_error: float, confidence: float) -> None:
    """Raises `InputError` for a relative error or a confidence that cannot be."""
    if not relative_error > 0:
        raise InputError(f"relative_error: expected a positive number such as 0.1, found {relative_error}")
    if not 0 < confidence < 1:
        raise InputError(f"confidence: expected a probability between 0 and 1 such as 0.95, found {confidence}")


def _check(d_model: int, relative_error: float, confidence: float, max_passes: int, directions: int) -> None:
    if not 2 <= directions < d_model // 2:
        raise InputError(f"directions: expected 2 to fewer than d_model / 2 = {d_model // 2}, found {directions}")
    check_settings(relative_error, confidence)
    if max_passes < first_passes(directions):
        raise InputError(
            f"max_passes: {directions} directions need {first_passes(directions)} passes at least, found {max_passes}; "
            f"ask for fewer directions or allow more passes"
        )


def _gaussian(rows: int, d_model: int, generator: torch.Generator) -> Float[Tensor, "row d_model"]:
    return torch.randn(rows, d_model, generator=generator, device=generator.device, dtype=torch.float64)


def _basis(
    route: Route, cotangents: Float[Tensor, "row d_model"], rows_on_disk: int | None
) -> Float[Tensor, "direction d_model"]:
    """Q^T, every token at the same weight; what passed there and back again proves that pull and push are adjoint."""
    with pulled(route, cotangents, rows_on_disk) as rows:
        # The squares of small norms would be lost in float32: summed in float64, and divided out in two steps.
        sizes = torch.linalg.vector_norm(rows, dim=(0, 2), dtype=torch.float64)
        inverse = torch.where(sizes > 0, 1.0 / sizes, 0.0)[:, None].to(rows)
        rows *= inverse
        groups = rows.split(rows_on_disk or len(rows))
        pushed = torch.cat([route.push(group * inverse) for group in groups]).double()
        back = estimates.gram(rows).sum(0).to(pushed.device)
    there = cotangents.to(pushed) @ pushed.T
    error, size = float((there - back).abs().max()), float(back.abs().max())
    if not error <= _ADJOINT * size:
        raise InputError(
            f"the forward and the backward derivative disagree: <g, J J^T g> differs from ||J^T g||^2 by {error:.2g} "
            f"(values up to {size:.2g}); a hook changes one of them alone, or the derivative is not finite"
        )
    return estimates.orthonormal_rows(pushed)


def _norms(
    captured: Float[Tensor, "pos direction direction"],
    rows: Sequence[Float[Tensor, "_ pos d_model"]],
    level: float,
    confidence: float,
) -> Estimates:
    """What one look at the rest's rows says, at the level that this look may spend; some tokens' Gram matrices at a time."""
    drawn = sum(map(len, rows))
    parts = chunks(len(captured), 3 * drawn**2 * captured.element_size(), NORM_BUDGET)
    found = [_limits(captured[part], estimates.gram(*(some[:, part] for some in rows)).cpu(), level) for part in parts]
    frobenius, lower, upper, operator_lower, operator_upper = map(torch.cat, zip(*found, strict=True))
    width = torch.where(frobenius > 0, (upper - lower) / (2 * frobenius), 0.0)
    return Estimates(
        frobenius=frobenius,
        frobenius_lower=lower,
        frobenius_upper=upper,
        operator_lower=operator_lower,
        operator_upper=operator_upper,
        confidence=confidence,
        relative_error=float(width.max()),
        passes=3 * captured.shape[-1] + drawn,
    )


def _limits(
    captured: Float[Tensor, "pos direction direction"], rest: Float[Tensor, "pos row row"], level: float
) -> tuple[PerToken, PerToken, PerToken, PerToken, PerToken]:
    """||J_i||_F with its limits, and the limits of ||J_i||_2."""
    inside = captured.diagonal(dim1=-2, dim2=-1).sum(-1)
    outside = estimates.trace_interval(rest, level)
    frobenius, lower, upper = ((inside + part).sqrt() for part in (outside.value, outside.lower, outside.upper))
    largest = torch.linalg.eigvalsh(captured)[:, -1].clamp_min(0.0)
    return frobenius, lower, upper, largest.sqrt(), (largest + estimates.norm_limit(rest, level)).sqrt()
