"""How well a number tells two kinds of rows apart: the area under the ROC curve, over groups of rows that hang together.

Cost: all pairs of a row of one kind and a row of the other, once; a resample is a product with a groups x groups matrix.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from scipy.optimize import brentq
from scipy.stats import norm

from ostools.ground.errors import InputError
from ostools.theory.statistics.bootstrap import expanded, fewest_at

RESAMPLES = 10_000
_UNDEFINED = 0.05  # of the resamples that may hold only one kind, and so have no area


class Area(NamedTuple):
    """`value`: NaN where there is no pair to compare; `low`, `high`: NaN where there is no interval, `why` says why."""

    value: float
    low: float
    high: float
    pairs: int
    why: str


def area(
    values: Float[np.ndarray, " row"],
    above: Bool[np.ndarray, " row"],
    groups: Shaped[np.ndarray, " row"],
    strata: Shaped[np.ndarray, " row"] | None = None,
    *,
    level: float = 0.95,
) -> Area:
    """P(x > x') + P(x = x') / 2 of a row x that is `above` and a row x' that is not: the area under the ROC curve.

    1: every value of the one kind is over every value of the other; 0: below it; 0.5: the values do not tell the kinds apart.

    Args:
        groups: rows of one group depend on each other (prompts of one seed begin alike); groups do not.
        strata: only rows of the same stratum are compared. What a stratum fixes (the length of a prompt) then explains nothing.

    The interval is the wider, at each end, of two. (1) The percentile bootstrap that draws whole groups, at a level widened for
    few of them (`bootstrap.expanded`). (2) Newcombe's score interval, with as many trials of each kind as there are groups
    that have one: a bootstrap of rows that are told apart completely has no width, however few they are. There is none for
    fewer groups than `bootstrap.fewest_at(level)`, and where over 5% of the resamples hold no pair.

    Raises `InputError` for values that are not finite.

    Sources: Hanley and McNeil, Radiology 143 (1982); Newcombe, Statistics in Medicine 25 (2006), method 5; of groups: Field and
    Welsh, J. R. Stat. Soc. B 69 (2007).
    """
    if not np.isfinite(values).all():
        raise InputError("area: expected finite values, found NaN or infinity among them")
    kinds, index = np.unique(groups, return_inverse=True)
    first, second = np.nonzero(above)[0], np.nonzero(~above)[0]
    compared = np.ones((len(first), len(second))) if strata is None else strata[first][:, None] == strata[second][None]
    compared = compared.astype(float)
    over, same = values[first][:, None] > values[second][None], values[first][:, None] == values[second][None]
    matrices = _Pairs(
        _summed(compared * (over + same / 2), index[first], index[second], len(kinds)),
        _summed(compared, index[first], index[second], len(kinds)),
    )
    pairs = int(compared.sum())
    if not pairs:
        return Area(math.nan, math.nan, math.nan, 0, "no two rows to compare")
    value = float(matrices.area(np.ones((1, len(kinds))))[0])
    if len(kinds) < fewest_at(level):
        return Area(value, math.nan, math.nan, pairs, f"too few groups for an interval: {len(kinds)}")
    drawn = _resampled(matrices, len(kinds), level)
    if drawn is None:
        return Area(value, math.nan, math.nan, pairs, "too few groups hold both kinds for an interval")
    ones = len(np.unique(index[first[compared.any(axis=1)]]))
    others = len(np.unique(index[second[compared.any(axis=0)]]))
    low, high = newcombe(value, ones, others, level)
    return Area(value, min(low, drawn[0]), max(high, drawn[1]), pairs, "")


@dataclass(frozen=True)
class _Pairs:
    """Of the rows of two groups: in how many pairs the one is over the other, and how many pairs there are."""

    over: Float[np.ndarray, "group group"]
    all: Float[np.ndarray, "group group"]

    def area(self, counts: Float[np.ndarray, "resample group"]) -> Float[np.ndarray, " resample"]:
        """With every group as often as it is counted; NaN where nothing is left to compare."""
        over, every = (((counts @ matrix) * counts).sum(axis=-1) for matrix in (self.over, self.all))
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(every > 0, over / every, np.nan)


def _summed(
    pairs: Float[np.ndarray, "one other"],
    ones: Int[np.ndarray, " one"],
    others: Int[np.ndarray, " other"],
    groups: int,
) -> Float[np.ndarray, "group group"]:
    rows = np.zeros((groups, len(others)))
    np.add.at(rows, ones, pairs)
    columns = np.zeros((groups, groups))
    np.add.at(columns, others, rows.T)
    return columns.T


def _resampled(pairs: _Pairs, groups: int, level: float) -> tuple[float, float] | None:
    """The percentile interval of resampled groups; None where too many resamples have no area."""
    # scipy.stats.bootstrap refuses a statistic that a resample may leave without a value.
    generator = np.random.default_rng(0)
    found = pairs.area(generator.multinomial(groups, np.full(groups, 1 / groups), size=RESAMPLES).astype(float))
    if np.isnan(found).mean() > _UNDEFINED:
        return None
    tail = (1 - expanded(level, groups)) / 2
    low, high = np.nanquantile(found, [tail, 1 - tail])
    return float(low), float(high)


def newcombe(value: float, ones: int, others: int, level: float) -> tuple[float, float]:
    """The areas t that a score test does not reject: |value - t| <= z sd(t), sd by Hanley and McNeil's exponential model.

    sd(t)^2 = t (1 - t) [1 + (N - 1) ((1 - t) / (2 - t) + t / (1 + t))] / (m n),   N = (m + n) / 2
    """
    z, mean = float(norm.ppf((1 + level) / 2)), (ones + others) / 2

    def excess(t: float) -> float:
        spread = 1 + (mean - 1) * ((1 - t) / (2 - t) + t / (1 + t))
        return (value - t) ** 2 - z * z * t * (1 - t) * spread / (ones * others)

    root: Any = brentq
    # At 0 and 1 the deviation is 0: outside; at the value itself inside.
    low = 0.0 if value <= 0 else root(excess, 0.0, value) if value < 1 else root(excess, 0.0, 1 - 1e-9)
    high = 1.0 if value >= 1 else root(excess, value, 1.0) if value > 0 else root(excess, 1e-9, 1.0)
    return float(low), float(high)
