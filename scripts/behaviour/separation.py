"""How well a number separates right answers from wrong ones: the area under the ROC curve, over all
or within strata.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from ostools.ground.errors import InputError


@dataclass(frozen=True)
class Separation:
    """Area under the ROC curve, with its interval, of so many right and wrong answers, in so many
    pairs of one stratum.
    """

    area: float
    low: float
    high: float
    right: int
    wrong: int
    pairs: int


def separation(
    scores: Sequence[float],
    right: Sequence[bool],
    strata: Sequence[Hashable] | None = None,
    level: float = 0.95,
) -> Separation:
    """P(a right answer has the higher score than a wrong one), ties counted half, over the pairs
    within a stratum.

    1/2 is no separation; below it wrong answers have the higher scores. `strata`: of each answer,
    such as its length, so that what differs between lengths separates nothing; a stratum with one
    kind of answers has no pair. None: all are one.

    The interval is the score interval of Newcombe, method 5: of all areas A those with |area - A|
    <= z sqrt(V(A)), where a stratum of m right and n wrong answers has Hanley and McNeil's variance
    with both counts halved between them,

        V = A (1 - A) (1 + (N - 1) ((1 - A) / (2 - A) + A / (1 + A))) / (m n),   N = (m + n) / 2,

    and strata are independent, each weighted by its pairs. It is never empty, also where the
    separation is perfect. Answers count as independent.

    Raises `InputError` for lists of different lengths, a score that is no number, and no pair.

    Source: Newcombe, Confidence intervals for an effect size measure based on the Mann-Whitney
    statistic, part 2 (2006), Statistics in Medicine 25; Hanley and McNeil (1982), Radiology 143.
    """
    from scipy.optimize import brentq

    x, is_right = np.asarray(scores, dtype=float), np.asarray(right, dtype=bool)
    groups = [0] * len(x) if strata is None else list(strata)
    if not len(x) == len(is_right) == len(groups) or bool(np.isnan(x).any()):
        raise InputError(
            f"separation: expected a score, a number, and a stratum for each of {len(is_right)} answers, found {len(x)} "
            f"scores, {int(np.isnan(x).sum())} of them no number, and {len(groups)} strata"
        )
    counts, above, used = [], 0.0, np.zeros(len(x), dtype=bool)
    for group in dict.fromkeys(groups):
        here = np.array([other == group for other in groups])
        good, bad = x[here & is_right], x[here & ~is_right]
        if not (len(good) and len(bad)):
            continue
        counts.append((len(good), len(bad)))
        used |= here
        above += float((np.sign(good[:, None] - bad[None, :]) / 2 + 0.5).sum())
    if not counts:
        raise InputError(
            "separation: expected a right and a wrong answer in one stratum, found none"
        )
    m, n = np.array(counts, dtype=float).T
    pairs = float((m * n).sum())
    area, z = above / pairs, NormalDist().inv_cdf((1 + level) / 2)

    def excess(at: float) -> float:
        spread = (1 - at) / (2 - at) + at / (1 + at)
        variance = (
            at * (1 - at) * float((m * n * (1 + ((m + n) / 2 - 1) * spread)).sum()) / pairs**2
        )
        return abs(area - at) - z * variance**0.5

    # The excess is 0 at an area of 0 or 1 too, where the variance is; beside it it is negative.
    beside = [area + (end - area) * 1e-9 for end in (0.0, 1.0)]
    low: Any = 0.0 if area == 0 else brentq(excess, 0.0, beside[0], xtol=1e-12)
    high: Any = 1.0 if area == 1 else brentq(excess, 1.0, beside[1], xtol=1e-12)
    return Separation(
        area,
        float(low),
        float(high),
        int((used & is_right).sum()),
        int((used & ~is_right).sum()),
        int(pairs),
    )
