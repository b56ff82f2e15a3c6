"""Where the answer is lost, and what linear probes of the last token say."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd

from ostools.ground.words import number
from ostools.measure import Decodability, FailureStage, ProbeIntervention, failure_stage
from ostools.measure.probes.captured import LOGITS
from ostools.measure.probes.failure_stage import failure_stage_memory
from ostools.measure.probes.scores import TESTS
from ostools.measure.unloaded import Unloaded
from ostools.models.shape import Shape
from ostools.reporting.charts.components import places_named
from ostools.reporting.findings.collapse import task_of
from ostools.reporting.findings.probes import failure_stage_findings, intervention_findings, probe_findings
from ostools.reporting.page.section import More, Part, Table, interval, share, table_from
from ostools.reporting.sections import extent
from ostools.reporting.sections.blocks import block
from ostools.reporting.sections.records import Measurements, Plan, ReportSection, Run, Step
from ostools.results import frame_of

FAILURE_STAGE_LEAD = (
    "Of every prompt it is asked: is the answer right (read)? Is it wrong, while a linear probe of the last token says the "
    "right one (unread)? Or are both wrong (undecodable)? A probe is tested on sequences that it was not trained on."
)


def _settings() -> dict[str, Any]:
    return {"dtypes": extent.FAILURE_STAGE_DTYPES, "seeds": extent.FAILURE_STAGE_SEEDS}


def _measure(run: Run) -> None:
    task, lengths = extent.FAILURE_STAGE_TASK, extent.FAILURE_STAGE_LENGTHS
    run.measured.failure_stage = run.measure(
        "failure-stage", 12, lambda part: failure_stage(run.model, task, lengths=lengths, progress=part, **_settings())
    )


def _memory(model: Unloaded, plan: Plan) -> Iterable[int]:
    task, lengths = extent.FAILURE_STAGE_TASK, extent.FAILURE_STAGE_LENGTHS
    yield failure_stage_memory(model, task, lengths, **_settings())


def _dear(shape: Shape, pos: int) -> str:
    is_dear = shape.device == "cpu" and shape.n_layers * shape.block_parameters > extent.LARGE
    words = extent.parameters_in_words(shape)
    return f"{words}, and its probes would take minutes on a CPU" if is_dear else ""


def _parts(measured: Measurements) -> list[Part]:
    """Where each answer is lost."""
    if measured.failure_stage is None:
        return []
    parameters: Any = measured.failure_stage.provenance.parameters
    prompts, sequences = parameters["prompts"], len(parameters["seeds"])
    lengths, dtypes = (", ".join(map(str, parameters[name])) for name in ("lengths", "dtypes"))
    note = (
        f"Asked: {prompts} prompts of {sequences} drawn sequences, of {lengths} items, in {dtypes}. More "
        "lengths, sequences and precisions, another task, a mitigation beside it: `ostools probe stage`."
    )
    more = [More("Place by place", tables=[_places(measured.failure_stage.probes)])]
    return [failure_stage_block(measured.failure_stage, "failure-stage-chart", notes=[note], more=more)]


def failure_stage_block(result: FailureStage, name: str, **part_fields: Any) -> Part:
    """Verdicts by length, with the table of them."""
    caption = f"Where answers are lost, {task_of(result)}"
    tables = [_verdicts(result)]
    return block(result, name, caption, failure_stage_findings(result), has_words=True, tables=tables, **part_fields)


def probe_block(result: Decodability, name: str, **part_fields: Any) -> Part:
    """Accuracy of probes, with the table of places."""
    caption = f"What linear probes decode of {task_of(result)}"
    more = [More("Place by place", tables=[_places(result)])]
    return block(result, name, caption, probe_findings(result), has_words=True, more=more, **part_fields)


def intervention_block(result: ProbeIntervention, name: str, **part_fields: Any) -> Part:
    """Whether the output reads what probes decode."""
    caption = f"Whether the output reads the answer to {task_of(result)}"
    return block(result, name, caption, intervention_findings(result), has_words=True, **part_fields)


def _verdicts(result: FailureStage) -> Table:
    """A row for each mitigation, length and dtype."""
    frame = frame_of(result)
    columns: dict[str, Any] = {
        **({"mitigation": "mitigation"} if frame["mitigation"].nunique() > 1 else {}),
        "items": "length",
        "dtype": "dtype",
        "verdict": "verdict",
        "prompts": "prompts",
        "right": lambda row: share(row["read"]),
        "wrong, probe right": lambda row: share(row["unread"]),
        "both wrong": lambda row: share(row["undecodable"]),
        "distance of n to n + 1": lambda row: number(float(row["distance"])),
        "its noise": lambda row: number(float(row["pair_noise"])),
    }
    return table_from("Verdicts", frame.to_dict("records"), columns)


def _places(probes: Decodability) -> Table:
    """A row for each place, dtype and test: the accuracy of its probes; tests in the chart's order."""
    frame = frame_of(probes)
    frame = frame[(frame["control"] == "none") & (frame["site"] != LOGITS)]
    frame = frame.sort_values("test", key=lambda tests: tests.map(TESTS.index), kind="stable")
    by_length: Any = frame["site"] == "length"
    frame = frame.assign(
        place=pd.Series(places_named(frame), index=frame.index).mask(by_length, "length alone"),
        dtype=frame["dtype"].mask(by_length, "–"),
    )
    columns: dict[str, Any] = {
        "place": "place",
        "dtype": "dtype",
        "test": "test",
        "trained on": "trained",
        "tested on": "tested",
        "right": lambda row: share(row["accuracy"]),
        "95%": interval("low", "high"),
        "chance": lambda row: share(row["chance"]),
        "finding": "finding",
    }
    return table_from("What probes say right", frame.to_dict("records"), columns)


FAILURE_STAGE = ReportSection(
    "failure-stage",
    "Where is the answer lost?",
    "Where it is lost",
    FAILURE_STAGE_LEAD,
    Step(12, _measure, _memory),
    _parts,
    dear=_dear,
)
