"""Where answers are lost, in a sweep: `ost.failure_stage`, `ost.probe` and `ost.probe_intervention`; under a mitigation that
arm alone.

All three train probes on all lengths of a cell together. What a row says of its length differs:

- `failure_stage`: a verdict a length.
- `probe`: a row per prompt, with what the probe said that had not seen it. What is said of all prompts together, with its
  intervals, is made of these rows when they are read.
- `probe_intervention`: one number of all lengths, a row per place and direction, which stands at the longest length;
`over_lengths` says
  of which it is.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import pandas as pd
from pydantic import Field
from transformer_lens.model_bridge import TransformerBridge

from ostools import tasks
from ostools.ground.errors import InputError
from ostools.measure import Decodability, FailureStage, ProbeIntervention
from ostools.measure.passes.batches import LongestPrompt
from ostools.measure.probes.failure_stage import COLUMNS, arm, failure_stage_bytes
from ostools.measure.probes.intervention import COLUMNS as READ_OUT
from ostools.measure.probes.intervention import probe_intervention
from ostools.measure.probes.probe import COLUMNS as PROBED
from ostools.measure.probes.probe import ProbeTask, of_predictions, probe, probes_bytes
from ostools.measure.probes.scores import LENGTH
from ostools.measure.probes.splits import FEWEST_GROUPS
from ostools.models.shape import Shape
from ostools.results import Frame, Provenance
from ostools.runs.measurements.record import Cell, Measurement, Options, Rows


class _SequenceOptions(Options):
    sequences: int = Field(24, ge=FEWEST_GROUPS, le=10_000)
    """Drawn ones of every length; those of seed s of the sweep begin at s times as many."""


class FailureStageOptions(_SequenceOptions):
    name: Literal["failure-stage"] = "failure-stage"
    target: Literal["number", "token"] | None = None


class ProbeOptions(_SequenceOptions):
    name: Literal["probe"] = "probe"
    target: Literal["number", "token", "position"] | None = None
    random_weights: bool = True


class InterventionOptions(_SequenceOptions):
    name: Literal["probe-intervention"] = "probe-intervention"


def _seeds(cell: Cell) -> list[int]:
    count = int(cell.arguments["sequences"])
    return list(range(cell.seed * count, (cell.seed + 1) * count)) if tasks.task(cell.task).random else [0]


def _probe_options(cell: Cell) -> dict[str, Any]:
    """What `probe` and `probe_intervention` take of a cell."""
    return {"lengths": cell.lengths, "dtypes": [cell.dtype], "seeds": _seeds(cell), "mitigation": cell.mitigated}


def _judged(model: TransformerBridge, cell: Cell) -> Rows:
    target = cell.arguments["target"]
    probe_task = ProbeTask.of(model, cell.task, cell.lengths, _seeds(cell), target, cell.mitigated, None)
    arm_result = arm(probe_task, [cell.dtype])
    provenance = arm_result.probes.provenance
    return arm_result.frame[list(COLUMNS)].astype(COLUMNS), replace(
        provenance, parameters={**provenance.parameters, "measurement": "failure-stage"}
    )


def _probed(model: TransformerBridge, cell: Cell) -> Rows:
    options = {name: cell.arguments[name] for name in ("target", "random_weights")}
    result = probe(model, cell.task, **_probe_options(cell), **options)
    target = result.provenance.parameters["target"]
    # A row's seed is the sweep's: that of the drawn sequence stands beside it.
    return result.predictions.rename(columns={"seed": "sequence"}).assign(target=target), result.provenance


def _read_out(model: TransformerBridge, cell: Cell) -> Rows:
    result = probe_intervention(model, cell.task, **_probe_options(cell))
    over = ", ".join(map(str, cell.lengths))
    return result.frame.assign(length=max(cell.lengths), over_lengths=over), result.provenance


def _verdicts(rows: Frame, provenance: Provenance) -> FailureStage:
    """The verdicts; what probes said place by place is not stored."""
    none = pd.DataFrame({name: [] for name in PROBED}).astype(PROBED)
    places = pd.DataFrame({"site": [], "layer": [], "depth": []})
    rows = rows if "reason" in rows else rows.assign(reason="")  # of an earlier version
    return FailureStage(
        rows[list(COLUMNS)], provenance, pd.DataFrame(), Decodability(none, provenance, places, pd.DataFrame())
    )


def _probes(rows: Frame, provenance: Provenance) -> Decodability:
    """Of one task, mitigation and seed, in one or several dtypes. Raises `InputError` for rows of several."""
    names = {name: _one_of(rows, name) for name in ("task", "mitigation", "target")}
    predictions: Any = rows[PREDICTION_COLUMNS].rename(columns={"sequence": "seed"}).astype({"layer": "Int64"})
    # The length alone is in no dtype: every cell has the same rows of it.
    of_length = predictions["site"] == LENGTH.site
    alone = predictions[of_length].drop_duplicates(["test", "control", "length", "seed"]).assign(dtype="none")
    predictions = pd.concat([alone, predictions[~of_length]], ignore_index=True)
    return of_predictions(predictions, names, tasks.task(names["task"]).random, provenance)


def _readings(rows: Frame, provenance: Provenance) -> ProbeIntervention:
    """Of one task, mitigation and seed. Raises `InputError` for rows of several."""
    for name in ("task", "mitigation"):
        _one_of(rows, name)
    return ProbeIntervention(rows[list(READ_OUT)].astype(READ_OUT), provenance)


def _one_of(rows: Frame, name: str) -> str:
    """The value of a column in which all rows are alike. Raises `InputError` where they are not."""
    values = rows[name].unique()
    if len(values) != 1:
        raise InputError(f"expected rows of one {name}, found {len(values)}: read those of each by themselves")
    return str(values[0])


def _failure_stage_memory(shape: Shape, cell: Cell, longest: LongestPrompt) -> int:
    return failure_stage_bytes(
        shape, longest, [cell.dtype], lengths=len(cell.lengths), seeds=len(_seeds(cell)), random=False
    )


def _probes_memory(shape: Shape, cell: Cell, longest: LongestPrompt) -> int:
    random = bool(cell.arguments.get("random_weights", False))
    return probes_bytes(shape, longest, [cell.dtype], lengths=len(cell.lengths), seeds=len(_seeds(cell)), random=random)


PREDICTION_COLUMNS = [
    "dtype",
    "test",
    "length",
    "sequence",
    "group",
    "label",
    "said",
    "right",
    "common",
    "trained",
    "penalty",
]
PREDICTION_COLUMNS += ["control", "depth", "site", "layer"]
"""Of the rows of `probe`: its predictions."""
FAILURE_STAGE = Measurement(
    FailureStageOptions, _failure_stage_memory, _judged, _verdicts, casts=True, depends_on_lengths=True
)
DECODABLE = Measurement(ProbeOptions, _probes_memory, _probed, _probes, casts=True, depends_on_lengths=True)
INTERVENTION = Measurement(
    InterventionOptions, _probes_memory, _read_out, _readings, casts=True, depends_on_lengths=True
)
