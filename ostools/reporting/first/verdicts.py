"""The strip of verdicts: for each question found, not found, not decided or not tested, with the rule that decides."""

from __future__ import annotations

from ostools.experiments.position import PositionEffect
from ostools.experiments.study.verdicts import HELPS, UNCHANGED
from ostools.experiments.study.verdicts import UNDECIDED as UNDECIDED_ANSWERS
from ostools.measure.collapse.verdicts import IN_A_RANGE, OVERFLOWS, TO_THE_END, UNDECIDED
from ostools.reporting.findings.collapse import cases
from ostools.reporting.findings.position import FALLS_BEHIND
from ostools.reporting.findings.sensitivity import no_size
from ostools.reporting.first.headlines import counted
from ostools.reporting.page.section import Verdict
from ostools.reporting.sections.measurements import Measurements
from ostools.results import Frame

FOUND, NOT_FOUND, OPEN, UNTESTED = "found", "not found", "not decided", "not tested"
HOLD, NO_SIZE, FAIL = "hold", "hold, of no use as a size", "FAIL"


def verdicts(found: Measurements) -> list[Verdict]:
    """One a question, in the report's order."""
    return [
        Verdict(
            "Collapse", _collapse(found), "is the pair closer than the rounding noise of its difference?", "collapse"
        ),
        Verdict(
            "Over-squashing", _squashing(found.position), "is the middle of a text weaker than its end?", "position"
        ),
        Verdict(
            "Bounds", _bounds(found), "do all certified bounds hold, and is the tightest within 10^3?", "sensitivity"
        ),
        Verdict("Wrong answers", _evaluation(found), "does the model err on a task?", "evaluate"),
        Verdict(
            "Mitigations", _mitigations(found), "does one make more answers right?", "mitigations", good_if_found=True
        ),
    ]


def _collapse(found: Measurements) -> str:
    kinds = {case.verdict.kind for case in cases(found.casts or found.collapses)}
    if kinds & {TO_THE_END, IN_A_RANGE}:
        return FOUND
    if not kinds - {OVERFLOWS}:
        return UNTESTED
    return OPEN if UNDECIDED in kinds else NOT_FOUND


def _squashing(position: PositionEffect | None) -> str:
    """Decided on natural text with token identity taken out: in one prompt, place and content are confounded."""
    if position is None:
        return UNTESTED
    return FOUND if position.verdict in FALLS_BEHIND else NOT_FOUND


def _bounds(found: Measurements) -> str:
    if found.comparison is None:
        return UNTESTED
    table = found.comparison.summary
    holds = table.loc[table["kind"] == "certified", "holds"]
    if holds.empty:
        return UNTESTED
    if (holds == False).fillna(False).any():  # noqa: E712 - the column may hold NA
        return FAIL
    if holds.isna().any():
        return OPEN
    tightest = float(table.loc[table["kind"] == "certified", "median_log10_looseness"].min())
    return NO_SIZE if no_size(tightest) else HOLD


def _evaluation(found: Measurements) -> str:
    """Found where an answer that was read is wrong. What was cut off, or something else, is neither right nor wrong."""
    if not any(one.read for one in found.evaluations):
        return UNTESTED
    if any(one.wrong for one in found.evaluations):
        return FOUND
    return OPEN if any(one.read < counted(one)[1] for one in found.evaluations) else NOT_FOUND


def _mitigations(found: Measurements) -> str:
    """Not tested where every answer is right without one: nothing can help there."""
    if found.study is None:
        return UNTESTED
    effects: Frame = found.study.effects
    answers: Frame = effects[(effects["quantity"] == "correct") & (effects["pairs"] > 0)]
    if answers.empty or float(answers["baseline"].iloc[0]) == 1:
        return UNTESTED
    told = set(found.study.verdicts["answers"])
    if HELPS in told:
        return FOUND
    if told <= {UNCHANGED}:
        return UNTESTED
    return OPEN if UNDECIDED_ANSWERS in told else NOT_FOUND
