"""Norms of every Jacobian: exact from all d_model rows, or estimated from a few random ones, each
with its interval.

Cost, exact: d_model backward passes over the prompt, whatever its length and however many layers;
d_model^2 numbers a token and layer. A sketch: k backward passes in one batch for k cotangents that
all tokens share, whatever d_model; n d_model numbers of memory a row, of at most `BATCH` rows at a
time.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from ostools.ground import Progress, chunk, part_of
from ostools.measure.jacobian.linearise import Cotangents, Tangents
from ostools.theory.statistics.estimates import Sketch, orthonormal_rows

NORM_BUDGET = 1 << 26
"""Bytes of Jacobians whose norms are taken at a time."""

Jacobians = Float[Tensor, "place d_out d_model"]


Pull = Callable[..., Tangents]
"""`Linearised.pull`: g^T J_i for every row g and place i."""


def exact_jacobians(
    pull: Pull,
    like: Float[Tensor, "... d_model"],
    progress: Progress | None = None,
    logit: Float[Tensor, " d_model"] | None = None,
) -> Jacobians:
    """J at every place; row k of J is the gradient of component k of y_n. With `logit` w^T J alone,
    one row.

    In the dtype and on the device of `like`.
    """
    d_model = like.shape[-1]
    cotangents = (
        torch.eye(d_model, dtype=like.dtype, device=like.device)
        if logit is None
        else logit.to(like)[None]
    )
    return pull(cotangents, progress).transpose(0, 1)


def exact_norms(
    jacobian_rows: Jacobians,
) -> tuple[Float[Tensor, " place"], Float[Tensor, " place"]]:
    """||J||_2 and ||J||_F at every place, float64.

    The operator norm is the root of the largest eigenvalue of J^T J, or of J J^T where that is
    smaller: exact to rounding, half the time of singular values. Every J is divided by its largest
    entry first, so that no square overflows. The norms of a J that is not finite are not.
    """
    d_out, d_model = jacobian_rows.shape[1:]
    operator, frobenius = [], []
    for matrices in jacobian_rows.split(
        max(1, chunk(NORM_BUDGET) // (d_out * d_model * jacobian_rows.element_size()))
    ):
        largest = matrices.abs().amax((1, 2), keepdim=True)
        unit = matrices / torch.where(largest > 0, largest, 1.0)
        unit.masked_fill_(
            ~torch.isfinite(largest), 0.0
        )  # eigvalsh would raise: 0 times such a scale is NaN
        gram = unit.mT @ unit if d_model <= d_out else unit @ unit.mT
        scale = largest[:, 0, 0].double()
        operator.append(torch.linalg.eigvalsh(gram)[:, -1].clamp_min(0.0).sqrt().double() * scale)
        frobenius.append(gram.diagonal(dim1=1, dim2=2).sum(-1).sqrt().double() * scale)
    return torch.cat(operator), torch.cat(frobenius)


PerToken = Float[Tensor, " pos"]

COTANGENTS = 8
"""Rows of a sketch, if the caller does not say: sizes within about a tenth on real models, the
order of tokens nearly exact.
"""
BATCH = 64
"""Rows that are pulled back together, and kept until their Gram matrices are made."""
CONFIDENCE, ACCURACY = 0.95, 0.1
"""Level of an interval; and its half-width over the norm in the median token, of
`method="estimate"`.
"""
WIDE = 0.3
"""Half-width over the norm above which an interval is counted as wide."""
_FIRST = 16
# Exact numbers need no interval, and have an operator norm: they are worth this many rows.
_WORTH = 256


def choose_method(d_model: int, *, exact_fits: bool) -> tuple[Literal["exact", "sketch"], str]:
    """A method, and why it is taken in words: exact up to d_model 256, where its rows cost at most
    four times those of a sketch of 64; else a sketch.

    `exact_fits`: the exact run has a plan within the memory.
    """
    if not exact_fits:
        return "sketch", "the exact Jacobians do not fit into the memory"
    if d_model > _WORTH:
        reason = f"exact Jacobians take {d_model} rows, and auto takes at most {_WORTH}"
        return "sketch", reason
    return "exact", f"{d_model} rows are at most {_WORTH}"


def most_rows(d_model: int, method: str, cotangents: int = COTANGENTS) -> int:
    """Rows of n d_model numbers that are held at a time: a batch, and the first rows, which the
    checks read.
    """
    if method == "sketch":
        first_rows = min(cotangents, BATCH)
        return first_rows + min(BATCH, cotangents - first_rows)
    return min(d_model, _FIRST + BATCH)


@dataclass(frozen=True)
class SketchedNorms:
    """Norms of every J_i, float64 on the CPU, one a place; the first orthonormal `cotangents` q,
    and their `rows` q^T J_i, which the checks read.

    `frobenius`: its square is unbiased. [`frobenius_lower`, `frobenius_upper`] holds ||J_i||_F with
    95% confidence, nominally, a token at a time and not of all tokens at once. `operator_lower` <=
    ||J_i||_2 always (up to rounding).
    `account`: how many rows there were, the half-width over the norm in the median token, and how
    many tokens' are above `WIDE`, of those that reach anything.
    """

    frobenius: PerToken
    frobenius_lower: PerToken
    frobenius_upper: PerToken
    operator_lower: PerToken
    account: dict[str, int | float]
    cotangents: Cotangents
    rows: Jacobians


def sketched(
    pull: Pull,
    like: Float[Tensor, "... d_model"],
    generator: torch.Generator,
    *,
    cotangents: int | None = None,
    accuracy: float = ACCURACY,
    progress: Progress | None = None,
) -> SketchedNorms:
    """||J_i||_F of every Jacobian, from rows q^T J_i of random orthonormal q, the same for all
    tokens.

    After `cotangents` rows; None: after as many as it takes until the half-width of the median
    interval is at most `accuracy` of its estimate, or after all d_model rows, and the norms are
    exact. The rows are then doubled: 16, 32, 64, ... Looking again must not cost coverage. A look's
    intervals may miss with half of the level that the looks before it left of 5%. The
    probability that any look misses is at most the sum, and so is that of the look at which it
    stops.
    """
    d_model = like.shape[-1]
    count = min(d_model, _FIRST if cotangents is None else cotangents)
    expected = count if cotangents is not None else min(d_model, 4 * count)
    remaining_risk = 1.0 - CONFIDENCE
    used_rows = [orthonormal_rows(min(count, BATCH), d_model, generator)]
    rows = pull(used_rows[0].to(like), part_of(progress, 0, len(used_rows[0]), expected))
    sketch = Sketch.of(rows)
    while True:
        while (row_count := sketch.rows) < count:
            used_rows.append(
                orthonormal_rows(min(count - row_count, BATCH), d_model, generator, used_rows)
            )
            part = part_of(progress, row_count, row_count + len(used_rows[-1]), expected)
            sketch += Sketch.of(pull(used_rows[-1].to(like), part))
        is_last = cotangents is not None or sketch.rows == d_model
        level = remaining_risk if is_last else remaining_risk / 2
        square = sketch.trace_interval(level)
        norm, lower, upper = square.value.sqrt(), square.lower.sqrt(), square.upper.sqrt()
        half_widths = ((upper - lower) / (2 * norm))[
            norm > 0
        ]  # of a token that reaches nothing there is no share
        half_width = float(half_widths.quantile(0.5)) if len(half_widths) else 0.0
        if is_last or half_width <= accuracy:
            wide = int((half_widths > WIDE).sum())
            account = {"cotangents": sketch.rows, "half_width": half_width, "wide": wide}
            bounds = norm, lower, upper, sketch.largest.sqrt()
            return SketchedNorms(*bounds, account, used_rows[0], rows.transpose(0, 1))
        count, remaining_risk = min(d_model, 2 * count), remaining_risk - level
        # A half-width falls as one over the root of the rows.
        needed = math.ceil(sketch.rows * (half_width / accuracy) ** 2)
        expected = min(d_model, max(count, needed))
