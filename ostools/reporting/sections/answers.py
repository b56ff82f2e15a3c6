"""What the model answers, where the answer is lost, and what helps."""

from collections.abc import Mapping, Sequence
from typing import Any

from ostools.ground import InputError
from ostools.measure import Evaluation, FailureStage, Study, evaluate, failure_stage, study
from ostools.measure.probes.wrong_answers import HIDDEN, NONE_WRONG, UNTOLD, WRONG_APART
from ostools.measure.study.verdicts import HELPS, UNCHANGED
from ostools.measure.study.verdicts import UNDECIDED as UNDECIDED_ANSWERS
from ostools.reporting.findings.answers import answer_counts, error_verdict, task_of
from ostools.reporting.findings.effects import answers_without
from ostools.reporting.page.section import DETECTED, NOT_DETECTED, OPEN, UNTESTED, Part, block
from ostools.reporting.sections import extent
from ostools.reporting.sections.records import (
    Calls,
    Measurements,
    Measuring,
    ReportPlan,
    ReportSection,
    dear_from,
    forecasts,
    measures,
)
from ostools.results import Frame

EVALUATION_LEAD = (
    "Prompts of Appendix C.1, answered greedily in this run. The last answer line of the text is "
    "read. It is right if it holds the right answer. By content: the value in the form, else the "
    "last number of the text."
)
MITIGATIONS_LEAD = (
    "The same questions with each mitigation and without it. The task is the one of the section "
    "on answers whose share of right answers is nearest to one half: the model can do better and "
    "worse on it. A verdict needs two things: an interval over lengths that excludes zero, and a "
    "sign-flip test. “No measurable effect”: the whole interval lies within 5 points of answers, "
    "0.1 nats of log p, a factor of 1.1. Else it is “not decided”."
)
FAILURE_STAGE_LEAD = (
    "Of every prompt it is asked: is the answer right (read)? Is it wrong, while a linear probe "
    "of the last token says the right one (unread)? Or are both wrong (undecodable)? A probe is "
    "tested on sequences that it was not trained on."
)


# --- what the model answers


def _answers(plan: ReportPlan) -> Calls:
    """Answers to each task, those that hold no answer in the form of the prompt among them."""
    return {name: (evaluate, {"task": name, **plan.extent.answers}) for name in extent.EVALUATION}


def _answers_state(results: list[Evaluation]) -> str:
    """Found where a read answer is wrong; cut off, or something else, is neither."""
    if any(result.wrong for result in results):
        return DETECTED
    has_unread = any(result.read < answer_counts(result)[1] for result in results)
    return OPEN if has_unread else NOT_DETECTED


def _evaluation_parts(measured: Measurements) -> list[Part]:
    """A block for each task."""
    return [
        block(
            result,
            f"evaluate-{index}",
            f"Answers by length, {task_of(result)}",
            title=task_of(result),
            leads="Evaluation",
        )
        for index, result in enumerate(measured.of("evaluate"))
    ]


EVALUATE = ReportSection(
    "evaluate",
    "What the model answers",
    "Evaluation",
    EVALUATION_LEAD,
    measures("evaluate", _answers),
    forecasts(_answers),
    _evaluation_parts,
    ("Wrong answers", "does the model err on a task?"),
    _answers_state,
)

# --- what helps


def _study_of(plan: ReportPlan, task: str) -> Mapping[str, Any]:
    return {
        "task": task,
        "lengths": extent.STUDY_LENGTHS,
        "mitigations": extent.MITIGATIONS,
        "seeds": plan.extent.study_seeds,
        "measures": plan.extent.study_measures,
    }


def _measure_study(run: Measuring) -> None:
    """The study, on the task that `task_with_room` names."""
    if not run.measured.of("evaluate"):
        run.call("mitigations", _answers(run.plan), key="unmitigated")
    unmitigated = run.measured.of("evaluate") or run.measured.of("unmitigated")
    run.measure(
        "mitigations",
        lambda progress: study(
            run.model,
            dtypes=(),
            progress=progress,
            **_study_of(run.plan, task_with_room(unmitigated)),
        ),
    )


def task_with_room(unmitigated: Sequence[Evaluation]) -> str:
    """The task whose share of right answers is nearest to one half, of answers without a
    mitigation; of two the one whose right line is likelier, as its log probability has room on both
    sides. Raises `InputError` where no answer was read, or all are right.
    """
    rooms = {}
    for result in unmitigated:
        right, total = answer_counts(result)
        if result.read and right < total:
            summary: Frame = result.summary
            likely = float(summary["log_probability"].mean())
            rooms[task_of(result)] = abs(right / total - 0.5), -likely
    if not rooms:
        raise InputError(
            "nothing can help or hurt the answers to these tasks: all are right, or none was read"
        )
    return min(rooms, key=lambda task: rooms[task])


def _studies(plan: ReportPlan) -> Calls:
    """All that may be measured: the answers, and a study of each task."""
    studies = {f"study {name}": (study, _study_of(plan, name)) for name in extent.EVALUATION}
    return {**_answers(plan), **studies}


def _study_state(results: list[Study]) -> str:
    """Not tested where every answer is right without one: nothing can help there."""
    kinds, (right, questions) = set(results[0].verdicts["answers"]), answers_without(results[0])
    if right == questions or kinds <= {UNCHANGED}:
        return UNTESTED
    return DETECTED if HELPS in kinds else OPEN if UNDECIDED_ANSWERS in kinds else NOT_DETECTED


def _study_parts(measured: Measurements) -> list[Part]:
    """Every mitigation against none."""
    (result,) = measured.of("mitigations")
    caption = f"Mitigations against none, {result.provenance.parameters['task']}"
    return [block(result, "mitigations-chart", caption, leads="Mitigations")]


MITIGATIONS = ReportSection(
    "mitigations",
    "What helps",
    "Mitigations",
    MITIGATIONS_LEAD,
    _measure_study,
    forecasts(_studies),
    _study_parts,
    ("Mitigations", "does one make more answers right?"),
    _study_state,
    dear_from(extent.VERY_LARGE, "and its answers would take minutes on a CPU"),
)


# --- where the answer is lost


def _stages(plan: ReportPlan) -> Calls:
    """In the dtype in which the model answers."""
    options = {
        "task": extent.FAILURE_STAGE_TASK,
        "lengths": extent.FAILURE_STAGE_LENGTHS,
        "seeds": plan.extent.stage_seeds,
        "dtypes": (plan.dtype,),
        "random_weights": plan.extent.untrained,
    }
    return {"": (failure_stage, options)}


def _failure_stage_parts(measured: Measurements) -> list[Part]:
    """Where each answer is lost: verdicts by length, and the probes place by place."""
    (result,) = measured.of("failure-stage")
    task = result.provenance.parameters["task"]
    lost = block(
        result, "failure-stage-chart", f"Where answers are lost, {task}", leads="Where it is lost"
    )
    return [lost, block(result.probes, "probes-chart", f"What probes decode, {task}")]


def _failure_stage_state(results: list[FailureStage]) -> str:
    """Found where the wrong answers fall where rounding hides n from n + 1."""
    states = {HIDDEN: DETECTED, WRONG_APART: NOT_DETECTED, UNTOLD: OPEN, NONE_WRONG: UNTESTED}
    return states[error_verdict(results[0]).verdict]


FAILURE_STAGE = ReportSection(
    "failure-stage",
    "Where is the answer lost?",
    "Where it is lost",
    FAILURE_STAGE_LEAD,
    measures("failure-stage", _stages),
    forecasts(_stages),
    _failure_stage_parts,
    (
        "Errors where hidden",
        "are answers wrong where the last token no longer tells n from n + 1?",
    ),
    _failure_stage_state,
    dear_from(extent.DEAR, "and it would take over half an hour on a CPU"),
)
