"""Heaping: are wrong answers multiples of 5, or of 10, more often than errors of their sizes would
be?

Cost: for each stratum of m wrong answers m^2 products of whole numbers; a second for a few thousand
wrong answers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from ostools.ground.errors import InputError

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
