"""A claim of the paper, the rule that judges it, the tests that rules use, and the verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from scipy.stats import binomtest, kendalltau

from ostools.ground.words import number
from ostools.results import Frame, Result
from ostools.theory.statistics.fits import over_seeds
from ostools.theory.statistics.intervals import FEWEST

AGREES, DISAGREES, UNTESTED = "agrees", "does not agree", "could not be tested"
BY_CONSTRUCTION = "holds by construction"
"""No model could have shown otherwise: what was measured checks this code. It is not evidence, and not counted in `AGREES`."""
OUTCOMES = (AGREES, BY_CONSTRUCTION, DISAGREES, UNTESTED)
LEVEL = 0.05
"""The level of every test."""
FEWEST_PAIRS = 6
"""Fewest questions that only one side gets right: with fewer, even all in one direction, an exact test does not reach 5%."""

Numbers: TypeAlias = Mapping[str, float | int | str | None]
ResultsByPart: TypeAlias = Mapping[str, Mapping[str, Result]]
"""Measurements by the name of their part, then by their own name."""


@dataclass(frozen=True)
class Verdict:
    """`outcome`: one of `OUTCOMES`. `sentence`: what was measured, or why nothing could be. `numbers`: what it rests on."""

    outcome: str
    sentence: str
    numbers: Numbers = field(default_factory=dict)


class UntestedError(Exception):
    """The data do not decide a claim; `reason` says why, `numbers` what there is."""

    def __init__(self, reason: str, **numbers: float | int | str | None) -> None:
        super().__init__(reason)
        self.reason, self.numbers = reason, numbers


Judge: TypeAlias = Callable[[ResultsByPart], Verdict]


@dataclass(frozen=True)
class Claim:
    """One claim of the paper.

    id: its name here. place: where it stands. words: the paper's own, exactly. figures: by which figure numbers it is asked
    for. needs: the parts that it is judged by. rule: when it agrees, in words. judge: the same as a function of what was
    measured; it raises `UntestedError` where that does not decide. construction: why no model, or no outcome of the rule, could
    speak against it; "" where one could.
    """

    id: str
    place: str
    words: str
    rule: str
    judge: Judge
    needs: tuple[str, ...] = ()
    figures: tuple[int, ...] = ()
    construction: str = ""

    def verdict(self, results: ResultsByPart, refused: Mapping[str, str]) -> Verdict:
        """The verdict on `results`; `refused`: why a part could not be measured."""
        lacking = [name for name in self.needs if name not in results]
        if lacking:
            return Verdict(UNTESTED, f"{lacking[0]}: {refused.get(lacking[0], 'it was not measured')}")
        try:
            verdict = self.judge(results)
        except UntestedError as error:
            return Verdict(UNTESTED, error.reason, error.numbers)
        if verdict.outcome == AGREES and self.construction:
            sentence = f"{BY_CONSTRUCTION}: {self.construction}. Checked here: {verdict.sentence}"
            return Verdict(BY_CONSTRUCTION, sentence, verdict.numbers)
        return verdict


def claim(
    id: str,
    place: str,
    words: str,
    rule: str,
    *,
    needs: tuple[str, ...] = (),
    figures: tuple[int, ...] = (),
    construction: str = "",
) -> Callable[[Judge], Claim]:
    """Decorator of a judge: the claim that it judges, with the fields of `Claim`."""
    return lambda judge: Claim(id, place, words, rule, judge, needs, figures, construction)


def decide(agrees: bool, sentence: str, **numbers: float | int | str | None) -> Verdict:
    """A verdict that the data decide."""
    return Verdict(AGREES if agrees else DISAGREES, sentence, numbers)


def numbers_in_words(numbers: Numbers) -> str:
    """The numbers of a verdict in one line."""
    return "; ".join(f"{name.replace('_', ' ')} {_value(value)}" for name, value in numbers.items())


def _value(value: Any) -> str:
    return "none" if value is None else number(value) if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Paired:
    """Counts of questions answered in two ways: how often only the one, only the other, both or neither was right."""

    only_first: int
    only_second: int
    both_right: int
    neither_right: int

    @property
    def p_value(self) -> float:
        """p-value of McNemar's exact test, two-sided."""
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
    """Counts of `correct` in two tables of answers, question by question."""
    first_right: Any = first.set_index(list(on))["correct"].astype(bool)
    second_right: Any = second.set_index(list(on))["correct"].astype(bool)
    shared = first_right.index.intersection(second_right.index)
    a, b = first_right.loc[shared].to_numpy(), second_right.loc[shared].to_numpy()
    return Paired(int((a & ~b).sum()), int((~a & b).sum()), int((a & b).sum()), int((~a & ~b).sum()))


def first_is_better(counts: Paired, first: str, second: str) -> Verdict:
    """The claim that more questions are right with `first` than with `second`; each is a phrase such as "with the hint"."""
    total = counts.only_first + counts.only_second + counts.both_right + counts.neither_right
    sentence = (
        f"of {total} questions, {counts.only_first} are right only {first}, and {counts.only_second} are right "
        f"only {second}"
    )
    undecided = ""
    if counts.both_right == total:
        undecided = f"all {total} questions are right either way: there is nothing to gain"
    elif counts.neither_right == total:
        undecided = f"all {total} questions are wrong either way"
    elif counts.only_first + counts.only_second < FEWEST_PAIRS:
        undecided = f"{sentence}: the test needs {FEWEST_PAIRS} that differ"
    elif counts.p_value > LEVEL:
        undecided = f"{sentence}: undecided (p = {number(counts.p_value)})"
    if undecided:
        raise UntestedError(undecided, **counts.numbers)
    sentence += f" (p = {number(counts.p_value)}, exact)"
    return decide(counts.only_first > counts.only_second, sentence, **counts.numbers)


def above_zero(samples: Sequence[float] | np.ndarray, quantity: str, unit: str = "seeds") -> Verdict:
    """The claim that the mean of independent samples is positive: by the 95% Student interval."""
    values = np.asarray(samples, dtype=float)
    values = values[np.isfinite(values)]
    if len(values) < FEWEST:
        raise UntestedError(
            f"{quantity}: {len(values)} {unit} have a value, and an interval needs {FEWEST}", samples=len(values)
        )
    mean, low, high = over_seeds(list(values))
    numbers = {"mean": mean, "low": low, "high": high, "samples": len(values)}
    sentence = f"{quantity}: {number(mean)} [{number(low)}, {number(high)}] over {len(values)} {unit}"
    if low <= 0 <= high:
        raise UntestedError(f"{sentence}: undecided, as the interval contains zero", **numbers)
    return decide(low > 0, sentence, **numbers)


def trend(x: Any, y: Any) -> tuple[float, float]:
    """Kendall's tau of two columns and its two-sided p-value; NaN where either does not vary."""
    correlation: Any = kendalltau(np.asarray(x, dtype=float), np.asarray(y, dtype=float))
    return float(correlation.statistic), float(correlation.pvalue)
