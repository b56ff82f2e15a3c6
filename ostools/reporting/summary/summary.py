"""The first section of a report: a strip of verdicts, headlines with their figures, small charts.

No headline is picked after looking: the derivative is the first of the profile, and every prompt
counts for collapse. What was not tested, or not decided, is said to be so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ostools.experiments.position import PositionEffect
from ostools.experiments.study.study import Study
from ostools.experiments.study.verdicts import (
    ABOUT,
    ABOUT_WORDS,
    HELPS,
    HURTS,
    LARGER,
    NO_EFFECT,
    SMALLER,
    UNCHANGED,
    in_words,
)
from ostools.experiments.study.verdicts import UNDECIDED as UNDECIDED_ANSWERS
from ostools.ground.words import number
from ostools.measure import Collapse, Comparison
from ostools.measure.answers.evaluate import Evaluation
from ostools.measure.collapse.verdicts import IN_A_RANGE, OVERFLOWS, TO_THE_END, UNDECIDED
from ostools.reporting.findings.answers import answer_counts, answers_sentence, floor_or_ceiling, measured_answers
from ostools.reporting.findings.collapse import Case, cases, collapse_summary, overflow_sentence, task_of
from ostools.reporting.findings.effects import FALLS_BEHIND, position_headline
from ostools.reporting.findings.sensitivity import bounds_headline, forms_headline, no_size, shape_headline
from ostools.reporting.page.section import Headline, Part, Section, StripField
from ostools.reporting.sections.measurements import Measurements
from ostools.reporting.style import theme
from ostools.reporting.summary.overview import nearest_to_noise, overview
from ostools.results import Frame, frame_of

ONES = ("figure-5a", "figure-5c", "figure-5d")
"""The prompts whose sequence is ones."""
FOUND, NOT_FOUND, OPEN, UNTESTED = "found", "not found", "not decided", "not tested"
HOLD, NO_SIZE, FAIL = "hold", "hold, of no use as a size", "FAIL"
NEEDED = {
    "Collapse": ("collapse", "precision"),
    "Position": ("position",),
    "Sensitivity": ("sensitivity",),
    "Bounds": ("sensitivity",),
    "Forms": ("sensitivity",),
    "Evaluation": ("evaluate",),
    "Mitigations": ("mitigations",),
}
"""The sections that each headline is made of, in the order in which their reasons matter."""


def findings_section(measured: Measurements, present: Sequence[str]) -> Section:
    """The first section; each verdict and headline leads to its section, where that is `present`."""

    def linked(item: Any) -> Any:
        return item if item.section in present else replace(item, section="")

    lines: list[Headline] = [linked(line) for line in headlines(measured)]
    fields: list[StripField] = [linked(field) for field in verdicts(measured)]
    missing = _missing(measured, lines)
    if not lines and measured.empty and measured.left_out:
        missing = ["Nothing could be measured. The reasons stand below."]
    elif not lines and not missing:
        missing = ["What was asked for has no headline of its own. Its findings stand in its section."]
    charts = overview(measured)
    part = Part(strip=fields if lines else (), headlines=lines, findings=missing, overview=charts)
    return Section("findings", "Findings", "Findings", "", [part])


def _missing(measured: Measurements, lines: Sequence[Headline]) -> list[str]:
    """Requested headlines that are not there because something was refused, with the first reason."""
    titles = {line.link for line in lines}
    requested = set(measured.provenance.parameters.get("sections", ()))
    sentences = []
    for title, needed in NEEDED.items():
        reasons = [omission.reason for name in needed for omission in measured.left_out if omission.section == name]
        if reasons and title not in titles and set(needed) & requested:
            more = f" ({len(reasons) - 1} more below)" if len(reasons) > 1 else ""
            sentences.append(f"There is no finding on {title.lower()}. The reason: {reasons[0]}{more}.")
    return sentences


# --- the strip


def verdicts(measured: Measurements) -> list[StripField]:
    """A field for each question, in the report's order."""
    curves = measured.casts or measured.collapses
    rules = (
        ("Collapse", _collapse(curves), "is the pair closer than the rounding noise of its difference?", "collapse"),
        ("Over-squashing", _squashing(measured.position), "is the middle of a text weaker than its end?", "position"),
        (
            "Bounds",
            _bounds(measured.comparison),
            "do all certified bounds hold, and is the tightest within 10^3?",
            "sensitivity",
        ),
        ("Wrong answers", _evaluation(measured.evaluations), "does the model err on a task?", "evaluate"),
    )
    mitigations = _mitigations(measured.study), "does one make more answers right?", "mitigations"
    return [*(StripField(*rule) for rule in rules), StripField("Mitigations", *mitigations, good_if_found=True)]


def _collapse(results: Sequence[Collapse]) -> str:
    kinds = {case.verdict.kind for case in cases(results)}
    if kinds & {TO_THE_END, IN_A_RANGE}:
        return FOUND
    if not kinds - {OVERFLOWS}:
        return UNTESTED
    return OPEN if UNDECIDED in kinds else NOT_FOUND


def _squashing(position: PositionEffect | None) -> str:
    """Decided on natural text whose tokens are rotated: one prompt confounds place and content."""
    if position is None:
        return UNTESTED
    return FOUND if position.verdict in FALLS_BEHIND else NOT_FOUND


def _bounds(comparison: Comparison | None) -> str:
    if comparison is None:
        return UNTESTED
    certified: Frame = comparison.summary[comparison.summary["kind"] == "certified"]
    if certified.empty:
        return UNTESTED
    if (certified["holds"] == False).fillna(False).any():  # noqa: E712 - the column may hold NA
        return FAIL
    if certified["holds"].isna().any():
        return OPEN
    return NO_SIZE if no_size(float(certified["median_log10_looseness"].min())) else HOLD


def _evaluation(results: Sequence[Evaluation]) -> str:
    """Found where a read answer is wrong; cut off, or something else, is neither right nor wrong."""
    if not any(result.read for result in results):
        return UNTESTED
    if any(result.wrong for result in results):
        return FOUND
    return OPEN if any(result.read < answer_counts(result)[1] for result in results) else NOT_FOUND


def _mitigations(study: Study | None) -> str:
    """Not tested where every answer is right without one: nothing can help there."""
    answers = None if study is None else measured_answers(study)
    if study is None or answers is None or answers.empty or float(answers["baseline"].iloc[0]) == 1:
        return UNTESTED
    kinds = set(study.verdicts["answers"])
    if HELPS in kinds:
        return FOUND
    if kinds <= {UNCHANGED}:
        return UNTESTED
    return OPEN if UNDECIDED_ANSWERS in kinds else NOT_FOUND


# --- headlines


def headlines(measured: Measurements) -> list[Headline]:
    """A headline for each question whose data exist."""
    comparison = measured.comparison
    lines = [
        collapse_headline(measured.casts or measured.collapses),
        None if measured.position is None else position_headline(measured.position),
        shape_headline(measured.profile),
        None if comparison is None else bounds_headline(comparison),
        None if comparison is None else forms_headline(comparison),
        *map(evaluation_headline, measured.evaluations),
        mitigations_headline(measured.study),
    ]
    return [line for line in lines if line is not None]


def collapse_headline(results: list[Collapse]) -> Headline | None:
    """Over which lengths a precision hides the pair; else how far the nearest is from that."""
    all_cases = cases(results)
    nearest = nearest_to_noise(results)
    if nearest is None:
        overflow = overflow_sentence(case.dtype for case in all_cases)
        verdict = "Whether the two sequences collapse was not tested."
        return Headline(verdict, overflow, "collapse", "Collapse") if overflow else None
    hidden = [case for case in all_cases if case.verdict.ranges]
    undecided = [case for case in all_cases if case.verdict.kind == UNDECIDED]
    if hidden:
        first = hidden[0]
        items = "ones" if first.task in ONES else "items"
        verdict = f"{first.dtype} hides the difference between n and n + 1 {items} from {first.verdict.where}."
        text = (
            f"On {first.task} the pair is {first.verdict.words}. There its float64 distance is below the rounding noise of the "
            f"difference. {_all_hidden(hidden, all_cases)}"
        )
    else:
        result, tail = nearest
        n_max = max(int(frame_of(curve)["length"].max()) for curve in results)
        text = (
            f"Of {f'{len(results)} prompts' if len(results) > 1 else 'the prompt'} and lengths up to {n_max}, {tail.dtype} on "
            f"{task_of(result)} comes nearest: over the last quarter of the lengths the distance is {number(tail.margin)} "
            "times the rounding noise of the difference."
        )
        verdict = "The two sequences do not collapse over these lengths."
        if undecided:
            first = undecided[0]
            verdict = "Whether the two sequences collapse is not decided."
            text = f"On {first.task} in {first.dtype}: {first.verdict.words}. {text}"
    overflow = overflow_sentence(case.dtype for case in all_cases if case.verdict.kind == OVERFLOWS)
    parts = (text, overflow, *collapse_summary(results))
    return Headline(verdict, " ".join(filter(None, parts)), "collapse", "Collapse")


def _all_hidden(hidden: list[Case], all_cases: list[Case]) -> str:
    """The other cases beside the first, which was picked after looking."""
    measured = sum(case.verdict.kind != OVERFLOWS for case in all_cases)
    other_hidden = "".join(f" On {case.task} in {case.dtype} it is {case.verdict.words}." for case in hidden[1:])
    share = f"{len(hidden)} of {measured} cases (a prompt in a precision) have one."
    return f"This is the range that begins first. {share}{other_hidden}"


def evaluation_headline(result: Evaluation) -> Headline:
    """How many answers to a task are right."""
    right, total = answer_counts(result)
    task = theme.inert(task_of(result))
    verdict = f"The model answers {right} of {total} prompts of {task} right."
    if not result.read:
        verdict = f"No answer of {total} to {task} could be read."
    return Headline(verdict, answers_sentence(result), "evaluate", "Evaluation")


def mitigations_headline(study: Study | None) -> Headline | None:
    """What helps or hurts the answers, by the study's verdicts."""
    if study is None:
        return None
    parameters: Any = study.provenance.parameters
    rows, effects, answers = study.verdicts.to_dict("records"), study.effects, measured_answers(study)
    changes = []
    for row in rows:
        for about in (name for name in ABOUT if row.get(name) in (HELPS, HURTS, LARGER, SMALLER)):
            effect = effects[(effects["mitigation"] == row["mitigation"]) & (effects["about"] == about)].iloc[0]
            verb = {LARGER: "raises", SMALLER: "lowers"}.get(row[about], row[about])
            changes.append(f"{row['mitigation']} {verb} ({ABOUT_WORDS[about]}: {in_words(effect.to_dict())})")
    verdict = f"{'; '.join(changes)}." if changes else "No mitigation is shown to help or to hurt."
    words = {
        UNCHANGED: "inactive, it changed nothing",
        UNDECIDED_ANSWERS: "not decided",
        NO_EFFECT: "no measurable effect",
    }
    outcomes = "; ".join(f"{row['mitigation']} (answers: {words.get(row['answers'], row['answers'])})" for row in rows)
    text = f"Tried on {parameters['task']}: {outcomes}."
    if limit := floor_or_ceiling(study):
        verdict = f"{limit} {verdict}"
    elif len(answers):
        text += f" Without a mitigation {float(answers['baseline'].iloc[0]):.0%} of the answers are right."
    return Headline(verdict, text, "mitigations", "Mitigations")
