"""The report's headlines: the verdict first, then the number that it rests on, then the section where more stands.

No headline is chosen after looking. The derivative is the first of the profile; collapse is told of every prompt. What was not
tested, or not decided, is said to be so.
"""

from __future__ import annotations

from typing import Any

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
from ostools.measure import Collapse
from ostools.measure.answers.evaluate import Evaluation
from ostools.measure.collapse.verdicts import OVERFLOWS, UNDECIDED
from ostools.reporting.findings import sensitivity as of_sensitivity
from ostools.reporting.findings.collapse import Case, cases, collapse_summary, overflow_sentence
from ostools.reporting.findings.evaluation import answered
from ostools.reporting.findings.position import position_headline
from ostools.reporting.findings.precision import Tail, tails
from ostools.reporting.findings.study import floor_or_ceiling
from ostools.reporting.page.section import Finding
from ostools.reporting.sections.measurements import Measurements
from ostools.reporting.style import theme
from ostools.results import Frame, frame_of

ONES = ("figure-5a", "figure-5c", "figure-5d")
"""The prompts whose sequence is ones."""


def headlines(found: Measurements) -> list[Finding]:
    """A headline for each question whose data exist."""
    said = [
        collapse_headline(found.casts or found.collapses),
        None if found.position is None else position_headline(found.position),
        of_sensitivity.shape_headline(found.profile),
        None if found.comparison is None else of_sensitivity.bounds_headline(found.comparison),
        None if found.comparison is None else of_sensitivity.forms_headline(found.comparison),
        *map(evaluation_headline, found.evaluations),
        mitigations_headline(found.study),
    ]
    return [one for one in said if one is not None]


def task_of(result: Collapse | Evaluation) -> str:
    return str(frame_of(result)["task"].iloc[0])


def counted(result: Evaluation) -> tuple[int, int]:
    """How many answers are right, of how many."""
    summary: Frame = result.summary
    right, asked = summary["right"].to_numpy(dtype=int), summary["asked"].to_numpy(dtype=int)
    return int(right.sum()), int(asked.sum())


def nearest(results: list[Collapse]) -> tuple[Collapse, Tail] | None:
    """The prompt and the precision in which the pair is nearest to the rounding noise, at the end of the lengths."""
    every = [(result, tail) for result in results for tail in tails(result)]
    return min(every, key=lambda one: one[1].margin, default=None)


def collapse_headline(results: list[Collapse]) -> Finding | None:
    """Over which lengths a precision hides the pair; else how far the nearest is from that."""
    every = cases(results)
    near = nearest(results)
    if near is None:
        overflow = overflow_sentence(case.dtype for case in every)
        verdict = "Whether the two sequences collapse was not tested."
        return Finding(verdict, overflow, "collapse", "Collapse") if overflow else None
    hidden = [case for case in every if case.verdict.ranges]
    undecided = [case for case in every if case.verdict.kind == UNDECIDED]
    if hidden:
        first = hidden[0]
        items = "ones" if first.task in ONES else "items"
        verdict = f"{first.dtype} hides the difference between n and n + 1 {items} from {first.verdict.where}."
        text = (
            f"On {first.task} the pair is {first.verdict.words}. There its float64 distance is below the rounding noise of the "
            f"difference. {_of_all(hidden, every)}"
        )
    elif undecided:
        first = undecided[0]
        verdict = "Whether the two sequences collapse is not decided."
        text = f"On {first.task} in {first.dtype}: {first.verdict.words}. {_nearest(near, results)}"
    else:
        verdict, text = "The two sequences do not collapse over these lengths.", _nearest(near, results)
    overflow = overflow_sentence(case.dtype for case in every if case.verdict.kind == OVERFLOWS)
    parts = (text, overflow, *collapse_summary(results))
    return Finding(verdict, " ".join(part for part in parts if part), "collapse", "Collapse")


def _of_all(hidden: list[Case], every: list[Case]) -> str:
    """The other cases beside the first, which was picked after looking."""
    tried = sum(case.verdict.kind != OVERFLOWS for case in every)
    others = "".join(f" On {case.task} in {case.dtype} it is {case.verdict.words}." for case in hidden[1:])
    return f"This is the range that begins first. {len(hidden)} of {tried} cases (a prompt in a precision) have one.{others}"


def leading(results: list[Collapse]) -> tuple[Collapse, str, str] | None:
    """The prompt and the precision that the first finding speaks of, and why it is that one."""
    hidden = [case for case in cases(results) if case.verdict.ranges]
    if hidden:
        of_task = {task_of(result): result for result in results}
        return of_task[hidden[0].task], hidden[0].dtype, "Of all ranges that are hidden the one that begins first."
    near = nearest(results)
    why = "Of all prompts and precisions the one that comes nearest to the noise."
    return None if near is None else (near[0], near[1].dtype, why)


def _nearest(near: tuple[Collapse, Tail], results: list[Collapse]) -> str:
    result, tail = near
    n_max = max(int(frame_of(one)["length"].max()) for one in results)
    count = f"{len(results)} prompts" if len(results) > 1 else "the prompt"
    return (
        f"Of {count} and lengths up to {n_max}, {tail.dtype} on {task_of(result)} comes nearest: over the last quarter of the "
        f"lengths the distance is {number(tail.margin)} times the rounding noise of the difference."
    )


def evaluation_headline(result: Evaluation) -> Finding:
    """How many answers to a task are right."""
    right, asked = counted(result)
    task = theme.inert(task_of(result))
    if not result.read:
        said = f"No answer of {asked} to {task} could be read."
        return Finding(said, answered(result), "evaluate", "Evaluation")
    return Finding(
        f"The model answers {right} of {asked} prompts of {task} right.", answered(result), "evaluate", "Evaluation"
    )


def mitigations_headline(study: Study | None) -> Finding | None:
    """What helps or hurts the answers, by the study's verdicts."""
    if study is None:
        return None
    parameters: Any = study.provenance.parameters
    effects: Frame = study.effects
    answers = effects[(effects["quantity"] == "correct") & (effects["pairs"] > 0)]
    base = (
        f"Without a mitigation {float(answers['baseline'].iloc[0]):.0%} of the answers are right."
        if len(answers)
        else ""
    )
    said = []
    for row in study.verdicts.to_dict("records"):
        for about in ABOUT:
            if row.get(about) in (HELPS, HURTS, LARGER, SMALLER):
                change = effects[(effects["mitigation"] == row["mitigation"]) & (effects["about"] == about)]
                words = in_words(change.iloc[0].to_dict())
                said.append(f"{row['mitigation']} {_decided(row[about])} ({ABOUT_WORDS[about]}: {words})")
    verdict = f"{'; '.join(said)}." if said else "No mitigation is shown to help or to hurt."
    if limit := floor_or_ceiling(study):
        verdict, base = f"{limit} {verdict}", ""
    return Finding(
        verdict, f"Tried on {parameters['task']}: {_tried(study)}. {base}".strip(), "mitigations", "Mitigations"
    )


def _decided(verdict: str) -> str:
    """The verdict as a verb."""
    return {LARGER: "raises", SMALLER: "lowers"}.get(verdict, verdict)


def _tried(study: Study) -> str:
    """Each mitigation with its verdict on the answers in words: what was inactive or not decided was not tested."""
    told = {
        UNCHANGED: "inactive, it changed nothing",
        UNDECIDED_ANSWERS: "not decided",
        NO_EFFECT: "no measurable effect",
    }
    rows = study.verdicts.to_dict("records")
    return "; ".join(f"{row['mitigation']} (answers: {told.get(row['answers'], row['answers'])})" for row in rows)
