"""Where the answer is lost, and what linear probes of the last token say."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ostools.measure import failure_stage
from ostools.measure.probes.failure_stage import failure_stage_memory
from ostools.measure.unloaded import Unloaded
from ostools.reporting.findings.collapse import task_of
from ostools.reporting.page.section import Part
from ostools.reporting.sections import extent
from ostools.reporting.sections.blocks import block, in_detail, tables_of
from ostools.reporting.sections.records import Measurements, Plan, ReportSection, Run, Step, dear_from

FAILURE_STAGE_LEAD = (
    "Of every prompt it is asked: is the answer right (read)? Is it wrong, while a linear probe of the last token says the "
    "right one (unread)? Or are both wrong (undecodable)? A probe is tested on sequences that it was not trained on."
)


def _measure(run: Run) -> None:
    task, lengths = extent.FAILURE_STAGE_TASK, extent.FAILURE_STAGE_LENGTHS
    options: Any = {"lengths": lengths, **extent.FAILURE_STAGE}
    run.measured.failure_stage = run.measure(
        "failure-stage", 12, lambda part: failure_stage(run.model, task, progress=part, **options)
    )


def _memory(model: Unloaded, plan: Plan) -> Iterable[int]:
    task, lengths = extent.FAILURE_STAGE_TASK, extent.FAILURE_STAGE_LENGTHS
    yield failure_stage_memory(model, task, lengths, **extent.FAILURE_STAGE)


def _parts(measured: Measurements) -> list[Part]:
    """Where each answer is lost: verdicts by length, and the probes place by place."""
    result = measured.failure_stage
    if result is None:
        return []
    parameters: Any = result.provenance.parameters
    prompts, sequences = parameters["prompts"], len(parameters["seeds"])
    lengths, dtypes = (", ".join(map(str, parameters[name])) for name in ("lengths", "dtypes"))
    note = (
        f"Asked: {prompts} prompts of {sequences} drawn sequences, of {lengths} items, in {dtypes}. More "
        "lengths, sequences and precisions, another task, a mitigation beside it: `ostools probe stage`."
    )
    caption, more = f"Where answers are lost, {task_of(result)}", [in_detail(result.probes)]
    content: Any = {"tables": tables_of(result), "notes": [note], "more": more}
    return [block(result, "failure-stage-chart", caption, result.findings(), has_words=True, **content)]


FAILURE_STAGE = ReportSection(
    "failure-stage",
    "Where is the answer lost?",
    "Where it is lost",
    FAILURE_STAGE_LEAD,
    Step(12, _measure, _memory),
    _parts,
    dear=dear_from(extent.LARGE, "and its probes would take minutes on a CPU"),
)
