"""Intervals in closed form: of a share (how many of the trials were right), and of a rank correlation."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any, NamedTuple

from statsmodels.stats.proportion import proportion_confint

from ostools.ground.errors import InputError


class Ends(NamedTuple):
    """The ends of an interval of a probability, or of a correlation."""

    low: float
    high: float


def wilson(successes: float | int, trials: float | int, level: float = 0.95) -> Ends:
    """Wilson's score interval of a probability p, of which `successes` of `trials` independent trials came true.

    The p that a score test at this level does not reject: |p_hat - p| <= z sqrt(p (1 - p) / n). Its ends are

        (p_hat + z^2 / 2n  -+  z sqrt(p_hat (1 - p_hat) / n + z^2 / 4n^2)) / (1 + z^2 / n)

    With none right it is [0, z^2 / (n + z^2)], with all right [n / (n + z^2), 1]: never empty, never beyond 0 and 1.
    Computed by statsmodels.

    `successes` need not be whole. A trial that is itself a share (several samples after one prompt) varies by at most
    p (1 - p), as much as a coin does, so that with prompts as trials the interval is no narrower than it should be.

    Raises `InputError` for no trials, successes outside 0..trials, and a level outside 0..1.

    Source: Wilson, Probable inference, the law of succession, and statistical inference (1927), J. Amer. Stat. Assoc. 22.
    """
    if not trials > 0 or not math.isfinite(trials):
        raise InputError(f"wilson: expected at least one trial, found {trials}")
    if not 0 <= successes <= trials:
        raise InputError(f"wilson: expected successes from 0 to the {trials} trials, found {successes}")
    if not 0 < level < 1:
        raise InputError(f"wilson: expected a level between 0 and 1, found {level}; for example 0.95")
    ends: Any = proportion_confint(successes, trials, alpha=1 - level, method="wilson")
    low, high = map(float, ends)
    # Exact at the ends, where rounding leaves 1e-17 of them.
    return Ends(0.0 if successes == 0 else low, 1.0 if successes == trials else high)


def spearman_interval(correlation: float, pairs: int, level: float = 0.95) -> Ends:
    """The interval of Spearman's rank correlation r of so many independent pairs, on Fisher's scale:

        tanh( artanh r  -+  z sqrt((1 + r^2 / 2) / (n - 3)) )

    Of fewer than four pairs there is none, and both ends are NaN; so they are of a correlation that is NaN. At r = -1 and 1 the
    interval is that point. Neighbouring tokens are alike, so that n tokens are fewer than n independent pairs: of tokens
    the interval is too narrow.

    Source: Bonett and Wright, Sample size requirements for estimating Pearson, Kendall and Spearman correlations (2000),
    Psychometrika 65.
    """
    if not 0 < level < 1:
        raise InputError(f"spearman: expected a level between 0 and 1, found {level}")
    if pairs < 4 or math.isnan(correlation):
        return Ends(math.nan, math.nan)
    if abs(correlation) >= 1:
        return Ends(correlation, correlation)
    half = NormalDist().inv_cdf((1 + level) / 2) * math.sqrt((1 + correlation**2 / 2) / (pairs - 3))
    middle = math.atanh(correlation)
    return Ends(math.tanh(middle - half), math.tanh(middle + half))
