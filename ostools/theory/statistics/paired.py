"""Two treatments of the same questions, right or wrong under each: the difference of their shares,
with an interval.

Cost: two roots of a one-dimensional integral, some milliseconds for any number of questions.
"""

from __future__ import annotations

import numpy as np

from ostools.ground.errors import InputError
from ostools.theory.statistics.intervals import IntervalEnds

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(400)
"""Of Gauss and Legendre, on -1..1: 200 already give 10 digits of the interval for up to 10,000
questions.
"""


def paired_difference(gained: int, lost: int, questions: int, level: float = 0.95) -> IntervalEnds:
    """Interval of p_gained - p_lost: of the share of questions that the second treatment alone
    answers right, less that of those that the first alone does.

    Of n questions, d = gained + lost are answered otherwise. With d ~ Bin(n, q) and gained ~ Bin(d,
    t) given d, the difference is q (2 t - 1). Its lower end at one-sided level a is the a-quantile
    of Q (2 T - 1), T ~ Beta(gained, lost + 1) and

        Q ~ Beta(d, n - d + 1) where 2 T > 1, else Beta(d + 1, n - d),

    which are the distributions of which Clopper and Pearson's lower and upper ends of t and q are
    quantiles; Beta(0, .) is 0 and Beta(., 0) is 1. The upper end is minus the lower one of the
    treatments exchanged. The interval leaves 0 out exactly where McNemar's exact test (`mcnemar`)
    rejects at 1 - level. Without any question answered otherwise it is -+ (1 - ((1 - level) /
    2)^(1/n)): no difference in few questions is no proof of none.

    It is exact in that it covers the difference at least at its level; Fay and Lumbard found that
    by enumeration, as the tests here do, and have no proof. Questions count as independent of each
    other.

    Raises `InputError` for counts below 0, more of them than questions, no questions, and a level
    outside 0..1.

    Source: Fay and Lumbard, Confidence intervals for difference in proportions for matched pairs
    compatible with exact McNemar's or sign tests (2021), Statistics in Medicine 40.
    """
    _require_counts("paired_difference", gained, lost, questions)
    if not 0 < level < 1:
        raise InputError(
            f"paired_difference: expected a level between 0 and 1, found {level}; for example 0.95"
        )
    tail = (1 - level) / 2
    return IntervalEnds(
        _lower(gained, lost, questions, tail), -_lower(lost, gained, questions, tail)
    )


def mcnemar(gained: int, lost: int) -> float:
    """Two-sided p-value of McNemar's exact test that both treatments are right equally often: of
    `gained` among Bin(gained + lost, 1/2), twice the smaller tail. 1 where no question is answered
    otherwise.

    Source: McNemar, Note on the sampling error of the difference between correlated proportions or
    percentages (1947), Psychometrika 12.
    """
    from scipy.special import bdtr

    _require_counts("mcnemar", gained, lost, max(gained + lost, 1))
    return min(1.0, 2 * float(bdtr(min(gained, lost), gained + lost, 0.5)))


def _require_counts(caller: str, gained: int, lost: int, questions: int) -> None:
    if not (questions >= 1 and gained >= 0 and lost >= 0 and gained + lost <= questions):
        raise InputError(
            f"{caller}: expected counts of at least 0, at most all of at least one question, found "
            f"{gained} gained and {lost} lost of {questions}"
        )


def _lower(gained: int, lost: int, questions: int, tail: float) -> float:
    from scipy.optimize import brentq
    from scipy.special import betainc, betaincc, betaincinv

    differ = gained + lost
    if gained == 0:  # T is 0: minus Clopper and Pearson's upper end of q
        return (
            -1.0
            if differ == questions
            else -float(betaincinv(differ + 1, questions - differ, 1 - tail))
        )
    half = float(betainc(gained, lost + 1, 0.5))  # P(T <= 1/2), McNemar's one-sided p
    positive = half <= tail
    if differ == questions and not positive:  # Q is 1
        return 2 * float(betaincinv(gained, lost + 1, tail)) - 1
    first, last = (half, 1.0) if positive else (0.0, half)
    places = first + (last - first) * (_NODES + 1) / 2
    weights = (last - first) * _WEIGHTS / 2
    sides = np.abs(2 * betaincinv(gained, lost + 1, places) - 1)

    def excess(size: float) -> float:
        """P(Q (2 T - 1) <= end) - tail, of the end of that size on its side of 0."""
        share = np.minimum(size / np.maximum(sides, 1e-300), 1.0)
        if positive:
            return half + float(weights @ betainc(differ, questions - differ + 1, share)) - tail
        return float(weights @ betaincc(differ + 1, questions - differ, share)) - tail

    size = float(brentq(excess, 0.0, 1.0, xtol=1e-13))  # pyright: ignore[reportArgumentType]
    return size if positive else -size
