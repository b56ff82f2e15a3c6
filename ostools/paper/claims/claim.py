"""A claim of the paper, the rule that judges it, the tests that rules use, and the verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ostools.ground.words import number
from ostools.results import Column, Frame
from ostools.theory.statistics.answers import mcnemar
from ostools.theory.statistics.fits import fit_decay, over_seeds
from ostools.theory.statistics.intervals import FEWEST

AGREES, DISAGREES, UNTESTED = "agrees", "does not agree", "could not be tested"
BY_CONSTRUCTION = "holds by construction"
"""No model could have shown otherwise: what was measured checks this code. It is not evidence, and
not counted in `AGREES`.
"""
OUTCOMES = (AGREES, BY_CONSTRUCTION, DISAGREES, UNTESTED)
LEVEL = 0.05
"""The level of every test."""
FEWEST_PAIRS = 6
"""Fewest questions that only one side gets right: with fewer, even all in one direction, an exact
test does not reach 5%.
"""
FIT_FROM = 16
"""Shortest length of a curve to which a law is fitted."""

ResultsByPart: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Measurements by the name of their part, then by their own name."""


@dataclass(frozen=True)
class Verdict:
    """`outcome`: one of `OUTCOMES`. `sentence`: what was measured, or why nothing could be."""

    outcome: str
    sentence: str


class UntestedError(Exception):
    """The data do not decide a claim; the message says why."""


def require_data(condition: object, why: str) -> None:
    """Raise `UntestedError` with the reason where a condition of a verdict is not met."""
    if not condition:
        raise UntestedError(why)


Judge: TypeAlias = Callable[[ResultsByPart], Verdict]


@dataclass(frozen=True)
class PaperClaim:
    """One claim of the paper.

    id: its name here. place: where it stands. words: the paper's own, exactly. rule: when it
    agrees, in words. judge: the same as a function of what was measured; it raises `UntestedError`
    where that does not decide. needs: the parts that it is judged by. figures: by which figure
    numbers it is asked for. construction: why no model, or no outcome of the rule, could speak
    against it; "" where one could.
    """

    id: str
    place: str
    words: str
    rule: str
    judge: Judge
    needs: tuple[str, ...]
    figures: tuple[int, ...] = ()
    construction: str = ""

    def verdict(self, results: ResultsByPart, refused: Mapping[str, str]) -> Verdict:
        """The verdict on `results`; `refused`: why a part could not be measured."""
        lacking = [name for name in self.needs if name not in results]
        if lacking:
            return Verdict(
                UNTESTED, f"{lacking[0]}: {refused.get(lacking[0], 'it was not measured')}"
            )
        try:
            verdict = self.judge(results)
        except UntestedError as error:
            return Verdict(UNTESTED, str(error))
        if verdict.outcome == AGREES and self.construction:
            sentence = f"{BY_CONSTRUCTION}: {self.construction}. Checked here: {verdict.sentence}"
            return Verdict(BY_CONSTRUCTION, sentence)
        return verdict


def decide(agrees: bool, sentence: str) -> Verdict:
    """A verdict that the data decide."""
    return Verdict(AGREES if agrees else DISAGREES, sentence)


def first_is_better(
    first: Frame, second: Frame, on: Sequence[str], ways: tuple[str, str]
) -> Verdict:
    """The claim that more of the same questions are right in the first table of answers: McNemar's
    exact test, two-sided.

    on: the columns by which questions are the same. ways: how each table was asked for, such as
        "with the hint".
    """
    first_right, second_right = (
        table.set_index(list(on))["correct"].astype(bool) for table in (first, second)
    )
    shared = first_right.index.intersection(second_right.index)
    a, b = (np.asarray(right.loc[shared], dtype=bool) for right in (first_right, second_right))
    total, only_first, only_second = len(shared), int((a & ~b).sum()), int((~a & b).sum())
    sentence = (
        f"of {total} questions, {only_first} are right only {ways[0]}, and {only_second} are right "
        f"only {ways[1]}"
    )
    require_data(
        only_first + only_second >= FEWEST_PAIRS,
        f"{sentence}: the test needs {FEWEST_PAIRS} that differ",
    )
    p = mcnemar(only_first, only_second)
    require_data(p <= LEVEL, f"{sentence}: undecided (p = {number(p)})")
    return decide(only_first > only_second, f"{sentence} (p = {number(p)}, exact)")


def above_zero(
    samples: Sequence[float] | np.ndarray, quantity: str, unit: str = "seeds"
) -> Verdict:
    """The claim that the mean of independent samples is positive: by the 95% Student interval."""
    values = np.asarray(samples, dtype=float)
    values = values[np.isfinite(values)]
    require_data(
        len(values) >= FEWEST,
        f"{quantity}: {len(values)} {unit} have a value, and an interval needs {FEWEST}",
    )
    mean, low, high = over_seeds(list(values))
    sentence = (
        f"{quantity}: {number(mean)} [{number(low)}, {number(high)}] over {len(values)} {unit}"
    )
    require_data(not low <= 0 <= high, f"{sentence}: undecided, as the interval contains zero")
    return decide(low > 0, sentence)


def all_vanish(curves: Mapping[str, Column], floors: Mapping[str, float], quantity: str) -> Verdict:
    """The claim that every curve (values by length) falls by a law without a level, down to its
    floor.
    """
    descriptions, falling = [], []
    for name, whole_curve in curves.items():
        curve = whole_curve[whole_curve.index >= FIT_FROM]
        fitted = fit_decay(
            curve.index.to_numpy(dtype=float), curve.to_numpy(dtype=float), floor=floors[name]
        )
        if fitted.verdict == "too few":
            descriptions.append(f"{name}: {fitted.used} lengths above rounding, and a fit needs 8")
            continue
        law, words = fitted.law, fitted.verdict
        if law is not None:
            words += f", rate {number(law.rate)}" + (
                f" to {number(law.level)}" if law.level else ""
            )
        falling.append(law is not None and law.level == 0)
        descriptions.append(f"{name}: {words}")
    require_data(falling, f"{quantity}: no curve can be fitted ({'; '.join(descriptions)})")
    count_words = f"falls by a law without a level in {sum(falling)} of {len(falling)}"
    sentence = f"{quantity}, from n = {FIT_FROM} on: {count_words} ({'; '.join(descriptions)})"
    require_data(
        not all(falling) or len(falling) == len(curves),
        f"{sentence}: {len(curves) - len(falling)} of {len(curves)} curves cannot be fitted",
    )
    return decide(all(falling), sentence)


def log_log_slopes(curves: Frame) -> np.ndarray:
    """Slope of log value against log length for each seed (a column); NaN where a value is 0."""
    with np.errstate(divide="ignore"):
        logs = np.log(curves.to_numpy(dtype=float))
    x = np.log(curves.index.to_numpy(dtype=float))
    if len(x) < 2:
        return np.full(logs.shape[1], np.nan)
    return np.array([np.polyfit(x, y, 1)[0] if np.isfinite(y).all() else np.nan for y in logs.T])


def trend(x: Column, y: Column) -> tuple[float, float]:
    """Kendall's tau of two columns and its two-sided p-value; NaN where either does not vary."""
    from scipy.stats import kendalltau

    correlation: Any = kendalltau(np.asarray(x, dtype=float), np.asarray(y, dtype=float))
    return float(correlation.statistic), float(correlation.pvalue)
