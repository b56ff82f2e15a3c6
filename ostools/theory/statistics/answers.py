"""Statistics of right and wrong answers. Two treatments of the same questions, right or wrong under
each: the difference of their shares, with an interval. Heaping: are wrong answers multiples of 5,
or of 10, more often than errors of their sizes would be?

Cost of a difference: two roots of a one-dimensional integral, some milliseconds for any number of
questions. Of heaping: for each stratum of m wrong answers m^2 products of whole numbers; a second
for a few thousand wrong answers.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from ostools.ground import InputError
from ostools.theory.statistics.intervals import Interval, require_level

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(400)
"""Of Gauss and Legendre, on -1..1: 200 already give 10 digits of the interval for up to 10,000
questions.
"""


def paired_difference(gained: int, lost: int, questions: int, level: float = 0.95) -> Interval:
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
    require_level("paired_difference", level)
    tail = (1 - level) / 2
    return Interval(_lower(gained, lost, questions, tail), -_lower(lost, gained, questions, tail))


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


STRATUM = 10
"""Right answers of one stratum: 1 to 10, 11 to 20, and so on. Ten in a row have every last digit
once.
"""


@dataclass(frozen=True)
class Heaping:
    """Wrong numbers that are multiples of `base`, beside how many would be.

    wrong: how many wrong numbers; multiples: how many of them are multiples of `base`; expected:
    their mean over the permutations of `heaping`; p_value: the share of permutations with at least
    as many.
    """

    base: int
    wrong: int
    multiples: int
    expected: float
    p_value: float


def heaping(right: Sequence[int], answers: Sequence[int], base: int) -> Heaping:
    """Heaping of wrong answers at multiples of `base`, against errors permuted between neighbouring
    right answers.

    Null: within a stratum (right answers 10 k + 1 to 10 k + 10) the errors, answers - right, are
    exchangeable: how far an answer is off depends on the neighbourhood, and not on where in it a
    round number lies. So the questions stay, and the errors of a stratum are permuted among its
    wrong answers. Within one length nothing could be: a greedy model gives one answer to one
    prompt. A stratum with one wrong answer says nothing.

    The statistic is the number of wrong answers that are multiples of `base`; the test is
    one-sided. All permutations are counted. A wrong answer with remainder r of its right answer is
    a multiple where it gets an error of remainder -r: a board of rectangles a_r x b_r (so many
    right answers, so many errors), whose rook polynomial is the product of those of its rectangles,
    sum_k C(a, k) C(b, k) k! x^k. From the rook numbers R_k follow the permutations with exactly t
    hits,

        N_t = sum_{k >= t} (-1)^(k - t) C(k, t) R_k (m - k)!,

    and strata are independent. So the p-value is exact: under the null P(p <= a) <= a for every a.

    A rejection says that errors fit to the place of round numbers. One favourite number that
    happens to be round (20 to everything) is rejected too: the counts of each answer say whether
    there are several.

    Raises `InputError` for lists of different lengths, for a right answer among the wrong ones, and
    for none.

    Source: Riordan, An introduction to combinatorial analysis (1958), chapter 7 (rook polynomials,
    hits).
    """
    if (
        len(right) != len(answers)
        or not right
        or any(a == b for a, b in zip(right, answers, strict=True))
    ):
        raise InputError(
            "heaping: expected wrong answers, one for each of at least one question, found "
            f"{len(answers)} for {len(right)}"
        )
    pairs = sorted(
        (
            ((key - 1) // STRATUM, key, answer - key)
            for key, answer in zip(right, answers, strict=True)
        )
    )
    shares, expected = (
        np.ones(1),
        0.0,
    )  # of permutations, by their number of multiples, over all strata so far
    for _, stratum in groupby(pairs, key=lambda pair: pair[0]):
        keys, errors = zip(*((key % base, -error % base) for _, key, error in stratum), strict=True)
        board = [(count, Counter(errors)[remainder]) for remainder, count in Counter(keys).items()]
        expected += sum(a * b for a, b in board) / len(keys)
        permutations = math.factorial(len(keys))
        shares = np.convolve(shares, [count / permutations for count in _hits(board, len(keys))])
    multiples = sum(answer % base == 0 for answer in answers)
    return Heaping(base, len(right), multiples, expected, min(1.0, float(shares[multiples:].sum())))


def _hits(board: Iterable[tuple[int, int]], size: int) -> list[int]:
    """The permutations of `size` with exactly t hits on a board of rectangles, for every t."""
    rooks = np.ones(1, dtype=object)  # Python's whole numbers, which do not overflow
    for a, b in board:
        placings = (
            math.comb(a, k) * math.comb(b, k) * math.factorial(k) for k in range(min(a, b) + 1)
        )
        rooks = np.convolve(rooks, np.array([*placings], dtype=object))
    placed = [count * math.factorial(size - k) for k, count in enumerate(rooks)]
    return [
        sum((-1) ** (k - t) * math.comb(k, t) * placed[k] for k in range(t, len(placed)))
        for t in range(len(placed))
    ]
