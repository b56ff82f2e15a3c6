"""A claim of the paper, the rule that judges it, the tests that rules use, the verdict, and the
table of all verdicts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np

from ostools.ground import number
from ostools.paper.drawn_result import PaperResult
from ostools.results import Column, Frame, Result, TableHead, frame_of
from ostools.theory.statistics.answers import mcnemar
from ostools.theory.statistics.fits import DECISIVE, Decay, Law, fit_decay, over_seeds
from ostools.theory.statistics.intervals import FEWEST

AGREES, DISAGREES, UNTESTED = "agrees", "does not agree", "could not be tested"
BY_CONSTRUCTION = "holds by construction"
"""No model could have shown otherwise: what was measured checks this code. It is not evidence, and
not counted in `AGREES`.
"""
OUTCOMES = (AGREES, BY_CONSTRUCTION, DISAGREES, UNTESTED)
LEVEL = 0.05
"""The level of every test."""
UNDECIDED = ": undecided"
INDEPENDENT = "lengths taken as independent"
"""What a test over lengths assumes. Answers that come in runs along the length reach its level too
often: at 40 lengths whose neighbours correlate by 0.5, 0.8 and 0.9 McNemar's test in 16%, 41% and
56%, where none is better.
"""
FIT_FROM = 16
"""Shortest length of a curve to which a law is fitted."""
LEAST_RATE = 0.1
"""A curve whose rate as a power of n is surely below this stays: 16 times the length leaves three
quarters.
"""
DECISIVE_LEVEL = 10.0
"""A curve stays where a law to a level has a BIC that is better by this ("very strong", Kass and
Raftery 1995), and by once more for ten times as many curves: of 31 lengths with 20% noise whose
neighbours correlate by 0.8, a law without a level has one "level" in 23 by it (one in 6 by 2).
"""
_VANISHES = {True: "falls", False: "stays", None: "open"}

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
        try:
            for name in self.needs:
                why = refused.get(name, "it was not measured")
                require_data(name in results, f"{name}: {why}")
            verdict = self.judge(results)
        except UntestedError as error:
            return Verdict(UNTESTED, str(error))
        if verdict.outcome == AGREES and self.construction:
            sentence = f"{BY_CONSTRUCTION}: {self.construction}. Checked here: {verdict.sentence}"
            return Verdict(BY_CONSTRUCTION, sentence)
        return verdict


@dataclass(frozen=True, eq=False)
class Reproduction(PaperResult):
    """`frame`: one row a claim of the paper. Columns: claim (its name), place, words (the paper's
    own), rule (when it agrees), outcome (agrees | holds by construction | does not agree | could
    not be tested), measured (what was found, or why nothing was), parts (what it was judged by),
    figures.

    `results`: the measurements of each part, by their names. `refused`: why a part could not be
    measured. `seconds`: what each part took when it was measured. `page`: the HTML report.
    """

    tables: ClassVar = (TableHead(columns="claim place outcome measured"),)

    results: Mapping[str, Mapping[str, Result]]
    refused: Mapping[str, str]
    seconds: Mapping[str, float]
    page: Path

    @property
    def outcomes(self) -> dict[str, int]:
        """Number of claims by outcome."""
        frame: Frame = frame_of(self)
        return {name: int((frame["outcome"] == name).sum()) for name in OUTCOMES}


def decide(agrees: bool, sentence: str, is_decided: object = True, why_not: str = "") -> Verdict:
    """A verdict, where the data decide: else `UntestedError` with the sentence and `why_not`."""
    require_data(is_decided, sentence + why_not)
    return Verdict(AGREES if agrees else DISAGREES, sentence)


def first_is_better(
    first: Frame, second: Frame, on: Sequence[str], ways: tuple[str, str]
) -> Verdict:
    """The claim that more of the same questions are right in the first table of answers: McNemar's
    exact test, two-sided.

    on: the columns by which questions are the same. ways: how each table was asked for, such as
        "with the hint".
    """
    pairs = first.merge(second, on=list(on), validate="one_to_one")
    a, b = (pairs[f"correct_{side}"].astype(bool) for side in "xy")
    only_first, only_second = int((a & ~b).sum()), int((b & ~a).sum())
    p = mcnemar(only_first, only_second)
    sentence = (
        f"of {len(pairs)} questions, {only_first} are right only {ways[0]}, and {only_second} are "
        f"right only {ways[1]} (p = {number(p)}, exact, {INDEPENDENT})"
    )
    return decide(only_first > only_second, sentence, p <= LEVEL, UNDECIDED)


def above_zero(
    samples: Sequence[float] | np.ndarray, quantity: str, unit: str = "seeds"
) -> Verdict:
    """The claim that the mean of independent samples is positive: by the 95% Student interval.
    Samples without a finite number are left out, and counted in the sentence.
    """
    values = [value for value in samples if np.isfinite(value)]
    left_out = len(samples) - len(values)
    unit += f" ({left_out} of {len(samples)} left out: no finite number)" * (left_out > 0)
    require_data(len(values) >= FEWEST, f"{quantity}: {len(values)} of {FEWEST} {unit} at least")
    mean, low, high = over_seeds(values)
    sentence = (
        f"{quantity}: {number(mean)} [{number(low)}, {number(high)}] over {len(values)} {unit}"
    )
    return decide(low > 0, sentence, not low <= 0 <= high, UNDECIDED)


def vanishes(fit: Decay, curves: int = 1) -> bool | None:
    """Whether a curve, one of so many, falls by a law without a level; None where that is open."""
    if fit.law is None:
        return False if fit.power is not None and fit.power.high < LEAST_RATE else None
    if fit.law.level:
        needed = DECISIVE_LEVEL * (1 + np.log10(curves))
        return False if -fit.without_level > needed else None
    return True if fit.without_level > DECISIVE else None


def all_vanish(curves: Mapping[str, Column], floors: Mapping[str, float], quantity: str) -> Verdict:
    """The claim that every curve (values by length) falls by a law without a level, down to its
    floor. One that surely does not speaks against it, at Bonferroni's level.
    """
    fits: dict[str, Decay] = {}
    for name, whole_curve in curves.items():
        curve = whole_curve[whole_curve.index >= FIT_FROM].astype(float)
        fits[name] = fit_decay(
            curve.index.to_numpy(float),
            curve.to_numpy(),
            floor=floors[name],
            confidence=1 - LEVEL / len(curves),
        )
    outcomes = [vanishes(fit, len(curves)) for fit in fits.values()]
    sentence = (
        f"{quantity}, from n = {FIT_FROM} on: falls by a law without a level in "
        f"{outcomes.count(True)} of {len(curves)}, stays in {outcomes.count(False)}, open in "
        f"{outcomes.count(None)} ({'; '.join(map(_fit_words, fits, fits.values(), outcomes))})"
    )
    is_decided = False in outcomes or (curves and None not in outcomes)
    return decide(False not in outcomes, sentence, is_decided)


def _fit_words(name: str, fit: Decay, outcome: bool | None) -> str:
    words = f"{name} {_VANISHES[outcome]}: {fit.verdict}"
    law: Law | None = fit.law or fit.power
    if law is None:
        return f"{words}, of {fit.used} lengths above rounding"
    level = f" to {number(law.level)}" if law.level else ""
    return f"{words}, rate {number(law.rate)} [{number(law.low)}, {number(law.high)}]{level}"


def log_log_slopes(curves: Frame) -> np.ndarray:
    """Slope of log value against log length for each seed (a column); not finite where a value is
    0, or for one length.
    """
    x = np.log(curves.index.to_numpy(float))
    x = x - x.sum() / max(len(x), 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return x @ np.log(curves.to_numpy(float)) / (x @ x)


def trend(x: Column, y: Column) -> tuple[float, float]:
    """Kendall's tau of two columns and its two-sided p-value; NaN where either does not vary."""
    from scipy.stats import kendalltau

    correlation: Any = kendalltau(np.asarray(x, dtype=float), np.asarray(y, dtype=float))
    return float(correlation.statistic), float(correlation.pvalue)
