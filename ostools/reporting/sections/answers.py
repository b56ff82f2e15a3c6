"""What the model answers, where the answer is lost, and what helps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from ostools.ground.errors import InputError
from ostools.ground.progress import Progress
from ostools.measure import FailureStage, Study, evaluate, failure_stage, study
from ostools.measure.answers.evaluate import evaluate_memory
from ostools.measure.answers.result import Evaluation
from ostools.measure.probes.failure_stage import failure_stage_memory
from ostools.measure.probes.wrong_answers import APART, HIDDEN, NONE_WRONG, UNTOLD
from ostools.measure.study.study import study_memory
from ostools.measure.study.verdicts import HELPS, UNCHANGED
from ostools.measure.study.verdicts import UNDECIDED as UNDECIDED_ANSWERS
from ostools.measure.unloaded import Unloaded
from ostools.reporting.findings.answers import answer_counts, task_of
from ostools.reporting.findings.probes import error_verdict
from ostools.reporting.findings.study import measured_answers
from ostools.reporting.page.section import (
    FOUND,
    NOT_FOUND,
    OPEN,
    UNTESTED,
    More,
    Part,
    StripField,
    block,
    tables_of,
)
from ostools.reporting.sections import extent
from ostools.reporting.sections.records import (
    Measurements,
    Plan,
    ReportSection,
    Run,
    Step,
    dear_from,
)

EVALUATION_LEAD = (
    "Prompts of Appendix C.1, answered greedily in this run. The last answer line of the text is read. It is right if it "
    "holds the right answer. By content: the value in the form, else the last number of the text."
)
MITIGATIONS_LEAD = (
    "The same questions with each mitigation and without it. The task is the one of the section on answers whose share of "
    "right answers is nearest to one half: the model can do better and worse on it. A verdict needs two things: an interval "
    "over lengths that excludes zero, and a sign-flip test. “No measurable effect”: the whole interval lies within 5 points "
    "of answers, 0.1 nats of log p, a factor of 1.1. Else it is “not decided”."
)


# --- what the model answers


def _measure_answers(run: Run) -> None:
    """Answers to each task, those that hold no answer in the form of the prompt among them."""
    answers = run.plan.extent.answers
    run.measured.evaluations += run.by_name(
        "evaluate",
        10,
        extent.EVALUATION,
        lambda name, part: evaluate(run.model, name, progress=part, **answers),
    )


def _answers_memory(model: Unloaded, plan: Plan) -> Iterable[int]:
    lengths, seeds = plan.extent.answer_lengths, plan.extent.answer_seeds
    return [evaluate_memory(model, name, lengths, seeds=seeds) for name in extent.EVALUATION]


def _answers_verdict(measured: Measurements) -> StripField:
    """Found where a read answer is wrong; cut off, or something else, is neither right nor wrong."""
    results = measured.evaluations
    state = NOT_FOUND if results else UNTESTED
    if any(result.wrong for result in results):
        state = FOUND
    elif any(result.read < answer_counts(result)[1] for result in results):
        state = OPEN
    return StripField("Wrong answers", state, "does the model err on a task?", "evaluate")


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
    Step(10, _measure_answers, _answers_memory),
    _evaluation_parts,
    _answers_verdict,
)

# --- what helps


def _measure_study(run: Run) -> None:
    """The study, on the task that `task_with_room` names."""

    def measured(progress: Progress | None) -> Study:
        unmitigated = run.measured.evaluations or [
            evaluate(run.model, name, **run.plan.extent.answers) for name in extent.EVALUATION
        ]
        lengths = extent.STUDY_LENGTHS
        options = _study_options(run.plan)
        return study(
            run.model,
            task_with_room(unmitigated),
            lengths=lengths,
            dtypes=(),
            progress=progress,
            **options,
        )

    run.measured.study = run.measure("mitigations", 20, measured)


def _study_options(plan: Plan) -> dict[str, Any]:
    of_size = {"seeds": plan.extent.study_seeds, "measures": plan.extent.study_measures}
    return {"mitigations": extent.MITIGATIONS, **of_size}


def task_with_room(unmitigated: Sequence[Evaluation]) -> str:
    """The task whose share of right answers is nearest to one half, of answers without a
    mitigation.

    Where every share is 0 or 1, the never-right task whose right line is likeliest: its log
    probability has room on both sides. Raises `InputError` where no answer was read, or all are
    right.
    """
    results = {task_of(result): result for result in unmitigated if result.read}
    shares = {}
    for name, result in results.items():
        right, total = answer_counts(result)
        shares[name] = right / total
    with_room = [name for name, share in shares.items() if 0 < share < 1]
    if with_room:
        return min(with_room, key=lambda name: abs(shares[name] - 0.5))
    means = {
        name: float(results[name].summary["log_probability"].to_numpy(dtype=float).mean())
        for name, share in shares.items()
        if share == 0
    }
    means = {name: mean for name, mean in means.items() if math.isfinite(mean)}
    if not means:
        words = ", ".join(f"{share:.0%} right on {name}" for name, share in shares.items())
        raise InputError(
            f"nothing can help or hurt the answers to these tasks: {words or 'no answer could be read'}"
        )
    return max(means, key=lambda name: means[name])


def _study_memory(model: Unloaded, plan: Plan) -> Iterable[int]:
    options = _study_options(plan)
    studies = [
        study_memory(model, name, extent.STUDY_LENGTHS, **options) for name in extent.EVALUATION
    ]
    return [*_answers_memory(model, plan), *studies]


def _study_verdict(measured: Measurements) -> StripField:
    """Not tested where every answer is right without one: nothing can help there."""
    study = measured.study
    answers = None if study is None else measured_answers(study)
    state = NOT_FOUND
    if study is None or answers is None or answers.empty or float(answers["baseline"].iloc[0]) == 1:
        state = UNTESTED
    elif HELPS in (kinds := set(study.verdicts["answers"])):
        state = FOUND
    elif kinds <= {UNCHANGED}:
        state = UNTESTED
    elif UNDECIDED_ANSWERS in kinds:
        state = OPEN
    rule = "does one make more answers right?"
    return StripField("Mitigations", state, rule, "mitigations", good_if_found=True)


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
    Step(20, _measure_study, _study_memory),
    _study_parts,
    _study_verdict,
    dear_from(extent.VERY_LARGE, "and its answers would take minutes on a CPU"),
)


# --- where the answer is lost

FAILURE_STAGE_LEAD = (
    "Of every prompt it is asked: is the answer right (read)? Is it wrong, while a linear probe of the last token says the "
    "right one (unread)? Or are both wrong (undecodable)? A probe is tested on sequences that it was not trained on."
)


def _measure_failure_stage(run: Run) -> None:
    options = _failure_stage_options(run.plan, str(next(run.model.parameters()).dtype))

    def measured(progress: Progress | None) -> FailureStage:
        task, about = extent.FAILURE_STAGE_TASK, {**options, "progress": progress}
        return run.beside_untrained(
            "failure-stage",
            lambda with_untrained: failure_stage(
                run.model, task, random_weights=with_untrained, **about
            ),
        )

    run.measured.failure_stage = run.measure("failure-stage", 12, measured)


def _failure_stage_options(plan: Plan, dtype: str) -> dict[str, Any]:
    """In the dtype in which the model answers."""
    options = {"lengths": extent.FAILURE_STAGE_LENGTHS, "seeds": plan.extent.stage_seeds}
    return options | {"dtypes": (dtype.removeprefix("torch."),)}


def _failure_stage_memory(model: Unloaded, plan: Plan) -> Iterable[int]:
    task, options = extent.FAILURE_STAGE_TASK, _failure_stage_options(plan, str(model.dtype))
    with_untrained, alone = (
        failure_stage_memory(model, task, random_weights=twin, **options) for twin in (True, False)
    )
    yield plan.beside_untrained(model, alone, with_untrained)


def _failure_stage_parts(measured: Measurements) -> list[Part]:
    """Where each answer is lost: verdicts by length, and the probes place by place."""
    result = measured.failure_stage
    if result is None:
        return []
    parameters: Any = result.provenance.parameters
    lengths, dtypes = (", ".join(map(str, parameters[name])) for name in ("lengths", "dtypes"))
    note = (
        f"Asked: {parameters['prompts']} prompts of {len(parameters['seeds'])} drawn sequences, of {lengths} items, in {dtypes}"
        ". `ostools probe stage` asks others."
    )
    fields: Any = {"tables": tables_of(result), "notes": [note], "leads": "Where it is lost"}
    fields["more"] = [More("The probes", tables=tables_of(result.probes))]
    return [
        block(
            result, "failure-stage-chart", f"Where answers are lost, {parameters['task']}", **fields
        )
    ]


def _failure_stage_verdict(measured: Measurements) -> StripField:
    """Found where the wrong answers fall where rounding hides n from n + 1."""
    state, result = UNTESTED, measured.failure_stage
    if result is not None:
        state = {HIDDEN: FOUND, APART: NOT_FOUND, UNTOLD: OPEN, NONE_WRONG: UNTESTED}[
            error_verdict(result).verdict
        ]
    rule = "are answers wrong where the last token no longer tells n from n + 1?"
    return StripField("Errors where hidden", state, rule, "failure-stage")


FAILURE_STAGE = ReportSection(
    "failure-stage",
    "Where is the answer lost?",
    "Where it is lost",
    FAILURE_STAGE_LEAD,
    Step(12, _measure_failure_stage, _failure_stage_memory),
    _failure_stage_parts,
    _failure_stage_verdict,
    dear_from(extent.DEAR, "and it would take over half an hour on a CPU"),
)
