"""A claim of the paper, the rule by which it is judged, and the verdict on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ostools.ground.words import number
from ostools.results import Result

AGREES, DISAGREES, UNTESTED = "agrees", "does not agree", "could not be tested"
BY_CONSTRUCTION = "holds by construction"
"""No model could have shown otherwise: what was measured checks this code. It is not evidence, and not counted in `AGREES`."""
OUTCOMES = (AGREES, BY_CONSTRUCTION, DISAGREES, UNTESTED)

Numbers: TypeAlias = Mapping[str, float | int | str | None]
ResultsByPart: TypeAlias = Mapping[str, Mapping[str, Result]]
"""What was measured: by the name of a part, its results by their names."""


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
    judge: Callable[[ResultsByPart], Verdict]
    needs: tuple[str, ...] = ()
    figures: tuple[int, ...] = ()
    construction: str = ""

    def verdict(self, results: ResultsByPart, refused: Mapping[str, str]) -> Verdict:
        """The verdict by what was found; `refused`: why a part could not be measured."""
        lacking = [name for name in self.needs if name not in results]
        if lacking:
            why = refused.get(lacking[0], "it was not measured")
            return Verdict(UNTESTED, f"{lacking[0]}: {why}")
        try:
            verdict = self.judge(results)
        except UntestedError as error:
            return Verdict(UNTESTED, error.reason, error.numbers)
        if verdict.outcome == AGREES and self.construction:
            sentence = f"{BY_CONSTRUCTION}: {self.construction}. Checked here: {verdict.sentence}"
            return Verdict(BY_CONSTRUCTION, sentence, verdict.numbers)
        return verdict


def decide(agrees: bool, sentence: str, **numbers: float | int | str | None) -> Verdict:
    """A verdict that the data decide."""
    return Verdict(AGREES if agrees else DISAGREES, sentence, numbers)


def numbers_in_words(numbers: Numbers) -> str:
    """The numbers of a verdict in one line."""
    return "; ".join(f"{name.replace('_', ' ')} {_value(value)}" for name, value in numbers.items())


def _value(value: Any) -> str:
    return "none" if value is None else number(value) if isinstance(value, float) else str(value)
