"""What the model answers, where the answer is lost, and what helps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ostools.ground import InputError, Progress
from ostools.measure import Evaluation, Unloaded, bytes_of, evaluate, failure_stage, study
from ostools.measure.probes.wrong_answers import HIDDEN, NONE_WRONG, UNTOLD, WRONG_APART
from ostools.measure.study.verdicts import HELPS, UNCHANGED
from ostools.measure.study.verdicts import UNDECIDED as UNDECIDED_ANSWERS
from ostools.reporting.findings.answers import answer_counts, task_of
from ostools.reporting.findings.effects import measured_answers
from ostools.reporting.findings.probes import error_verdict
from ostools.reporting.page.section import (
    DETECTED,
    NOT_DETECTED,
    OPEN,
    UNTESTED,
    Part,
    block,
    tables_of,
)
from ostools.reporting.sections import extent
from ostools.reporting.sections.records import (
    Measurements,
    Measuring,
    ReportPlan,
    ReportSection,
    dear_from,
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


def _answers(run: Measuring, task: str, part: Progress | None) -> Evaluation:
    return evaluate(run.model, task, progress=part, **run.plan.extent.answers)


def _measure_answers(run: Measuring) -> None:
    """Answers to each task, those that hold no answer in the form of the prompt among them."""
    run.measured.evaluations = run.by_name(
        "evaluate", extent.EVALUATION, lambda name, part: _answers(run, name, part)
    )


def _answers_memory(model: Unloaded, plan: ReportPlan) -> list[int]:
    options = plan.extent.answers
    return [bytes_of(evaluate, model, task=name, **options) for name in extent.EVALUATION]


def _answers_state(measured: Measurements) -> str:
    """Found where a read answer is wrong; cut off, or something else, is neither."""
    results = measured.evaluations
    if any(result.wrong for result in results):
        return DETECTED
    has_unread = any(result.read < answer_counts(result)[1] for result in results)
    return OPEN if has_unread else NOT_DETECTED if results else UNTESTED


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
        for index, result in enumerate(measured.evaluations)
    ]


EVALUATE = ReportSection(
    "evaluate",
    "What the model answers",
    "Evaluation",
    EVALUATION_LEAD,
    _measure_answers,
    _answers_memory,
    _evaluation_parts,
    ("Wrong answers", "does the model err on a task?"),
    _answers_state,
)

# --- what helps


def _measure_study(run: Measuring) -> None:
    """The study, on the task that `task_with_room` names."""
    unmitigated = run.measured.evaluations or run.by_name(
        "mitigations", extent.EVALUATION, lambda name, part: _answers(run, name, part)
    )
    options = _study_options(run.plan)
    run.measured.study = run.measure(
        "mitigations",
        lambda part: study(
            run.model, task_with_room(unmitigated), dtypes=(), progress=part, **options
        ),
    )


def _study_options(plan: ReportPlan) -> dict[str, Any]:
    return {
        "lengths": extent.STUDY_LENGTHS,
        "mitigations": extent.MITIGATIONS,
        "seeds": plan.extent.study_seeds,
        "measures": plan.extent.study_measures,
    }


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


def _study_memory(model: Unloaded, plan: ReportPlan) -> Iterable[int]:
    options = _study_options(plan)
    studies = [bytes_of(study, model, task=name, **options) for name in extent.EVALUATION]
    return [*_answers_memory(model, plan), *studies]


def _study_state(measured: Measurements) -> str:
    """Not tested where every answer is right without one: nothing can help there."""
    if measured.study is None:
        return UNTESTED
    kinds, answers = set(measured.study.verdicts["answers"]), measured_answers(measured.study)
    if answers.empty or float(answers["baseline"].iloc[0]) == 1 or kinds <= {UNCHANGED}:
        return UNTESTED
    return DETECTED if HELPS in kinds else OPEN if UNDECIDED_ANSWERS in kinds else NOT_DETECTED


def _study_parts(measured: Measurements) -> list[Part]:
    """Every mitigation against none."""
    study = measured.study
    if study is None:
        return []
    caption = f"Mitigations against none, {study.provenance.parameters['task']}"
    return [block(study, "mitigations-chart", caption, leads="Mitigations")]


MITIGATIONS = ReportSection(
    "mitigations",
    "What helps",
    "Mitigations",
    MITIGATIONS_LEAD,
    _measure_study,
    _study_memory,
    _study_parts,
    ("Mitigations", "does one make more answers right?"),
    _study_state,
    dear_from(extent.VERY_LARGE, "and its answers would take minutes on a CPU"),
)


# --- where the answer is lost


def _measure_failure_stage(run: Measuring) -> None:
    options = _failure_stage_options(run.plan, str(next(run.model.parameters()).dtype))
    run.measured.failure_stage = run.measure(
        "failure-stage", lambda part: failure_stage(run.model, progress=part, **options)
    )


def _failure_stage_options(plan: ReportPlan, dtype: str) -> dict[str, Any]:
    """In the dtype in which the model answers."""
    return {
        "task": extent.FAILURE_STAGE_TASK,
        "lengths": extent.FAILURE_STAGE_LENGTHS,
        "seeds": plan.extent.stage_seeds,
        "dtypes": (dtype.removeprefix("torch."),),
        "random_weights": plan.extent.untrained,
    }


def _failure_stage_memory(model: Unloaded, plan: ReportPlan) -> Iterable[int]:
    yield bytes_of(failure_stage, model, **_failure_stage_options(plan, str(model.dtype)))


def _failure_stage_parts(measured: Measurements) -> list[Part]:
    """Where each answer is lost: verdicts by length, and the probes place by place."""
    result = measured.failure_stage
    if result is None:
        return []
    caption = f"Where answers are lost, {result.provenance.parameters['task']}"
    more = [Part("The probes", tables=tables_of(result.probes))]
    return [block(result, "failure-stage-chart", caption, leads="Where it is lost", more=more)]


def _failure_stage_state(measured: Measurements) -> str:
    """Found where the wrong answers fall where rounding hides n from n + 1."""
    if measured.failure_stage is None:
        return UNTESTED
    states = {HIDDEN: DETECTED, WRONG_APART: NOT_DETECTED, UNTOLD: OPEN, NONE_WRONG: UNTESTED}
    return states[error_verdict(measured.failure_stage).verdict]


FAILURE_STAGE = ReportSection(
    "failure-stage",
    "Where is the answer lost?",
    "Where it is lost",
    FAILURE_STAGE_LEAD,
    _measure_failure_stage,
    _failure_stage_memory,
    _failure_stage_parts,
    (
        "Errors where hidden",
        "are answers wrong where the last token no longer tells n from n + 1?",
    ),
    _failure_stage_state,
    dear_from(extent.DEAR, "and it would take over half an hour on a CPU"),
)
