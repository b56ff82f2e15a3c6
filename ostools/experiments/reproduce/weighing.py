"""How the judges weigh: paired answers, means over seeds, and a trend along the lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import binomtest, kendalltau

from ostools.experiments.reproduce.claim import UntestedError, Verdict, decide
from ostools.ground.words import number
from ostools.results import Frame
from ostools.theory.statistics.bootstrap import FEWEST
from ostools.theory.statistics.fits import over_seeds

LEVEL = 0.05
"""The level of every test."""
FEWEST_PAIRS = 6
"""Fewest questions that only one side gets right: with fewer, even all in one direction, an exact test does not reach 5%."""


@dataclass(frozen=True)
class Paired:
    """The same questions answered in two ways: how often only the one, only the other, both or neither was right."""

    only_first: int
    only_second: int
    both_right: int
    neither_right: int

    @property
    def p_value(self) -> float:
        """Of McNemar's exact test, two-sided."""
        parted = self.only_first + self.only_second
        return 1.0 if not parted else float(binomtest(self.only_first, parted, 0.5).pvalue)

    @property
    def numbers(self) -> dict[str, float | int | str | None]:
        return {
            "right_only_first": self.only_first,
            "right_only_second": self.only_second,
            "right_both": self.both_right,
            "wrong_both": self.neither_right,
            "p_value": self.p_value,
        }


def paired(first: Frame, second: Frame, on: Sequence[str]) -> Paired:
    """`correct` of two tables of answers, question by question."""
    first_right: Any = first.set_index(list(on))["correct"].astype(bool)
    second_right: Any = second.set_index(list(on))["correct"].astype(bool)
    shared = first_right.index.intersection(second_right.index)
    one_way, other_way = first_right.loc[shared].to_numpy(), second_right.loc[shared].to_numpy()
    return Paired(
        int((one_way & ~other_way).sum()),
        int((~one_way & other_way).sum()),
        int((one_way & other_way).sum()),
        int((~one_way & ~other_way).sum()),
    )


def first_is_better(counts: Paired, first: str, second: str) -> Verdict:
    """The claim that more questions are right with `first` than with `second`; each is a phrase such as "with the hint"."""
    question_count = counts.only_first + counts.only_second + counts.both_right + counts.neither_right
    sentence = (
        f"of {question_count} questions, {counts.only_first} are right only {first}, and {counts.only_second} are right "
        f"only {second}"
    )
    if counts.both_right == question_count:
        raise UntestedError(
            f"all {question_count} questions are right either way: there is nothing to gain", **counts.numbers
        )
    if counts.neither_right == question_count:
        raise UntestedError(f"all {question_count} questions are wrong either way", **counts.numbers)
    if counts.only_first + counts.only_second < FEWEST_PAIRS:
        raise UntestedError(f"{sentence}: the test needs {FEWEST_PAIRS} that differ", **counts.numbers)
    if counts.p_value > LEVEL:
        raise UntestedError(f"{sentence}: undecided (p = {number(counts.p_value)})", **counts.numbers)
    return decide(
        counts.only_first > counts.only_second, f"{sentence} (p = {number(counts.p_value)}, exact)", **counts.numbers
    )


def above_zero(samples: Sequence[float] | np.ndarray, what: str, unit: str = "seeds") -> Verdict:
    """The claim that the mean of independent samples is positive: by the 95% Student interval."""
    values = np.asarray(samples, dtype=float)
    values = values[np.isfinite(values)]
    if len(values) < FEWEST:
        raise UntestedError(
            f"{what}: {len(values)} {unit} have a value, and an interval needs {FEWEST}", samples=len(values)
        )
    mean, low, high = over_seeds(list(values))
    numbers = {"mean": mean, "low": low, "high": high, "samples": len(values)}
    sentence = f"{what}: {number(mean)} [{number(low)}, {number(high)}] over {len(values)} {unit}"
    if low <= 0 <= high:
        raise UntestedError(f"{sentence}: undecided, as the interval contains zero", **numbers)
    return decide(low > 0, sentence, **numbers)


def trend(x: Any, y: Any) -> tuple[float, float]:
    """Kendall's tau of two columns and its two-sided p-value; NaN where either does not vary."""
    correlation: Any = kendalltau(np.asarray(x, dtype=float), np.asarray(y, dtype=float))
    return float(correlation.statistic), float(correlation.pvalue)
