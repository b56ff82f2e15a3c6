"""Where answers are lost, in a sweep: `ost.fate`, `ost.decodable` and `ost.readout`; under a mitigation that arm alone.

All three train probes on all lengths of a cell together. What a row says of its length differs:

- `fate`: a verdict a length.
- `decodable`: a row per prompt, with what the probe said that had not seen it. What is said of all prompts together, with its
  intervals, is made of these rows when they are read.
- `readout`: one number of all lengths, a row per place and direction, which stands at the longest length; `over_lengths` says
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
from ostools.measure import Decodable, Fate, Readout
from ostools.measure.fate.decodable import COLUMNS as PROBED
from ostools.measure.fate.decodable import ProbeTask, decodable, of_predictions, probes_bytes
from ostools.measure.fate.fate import COLUMNS, arm, fate_bytes
from ostools.measure.fate.readout import COLUMNS as READ_OUT
from ostools.measure.fate.readout import readout
from ostools.measure.fate.scores import LENGTH
from ostools.measure.fate.splits import FEWEST_GROUPS
from ostools.measure.passes.memory import LongestPrompt
from ostools.models.shape import Shape
from ostools.results import Frame, Provenance
from ostools.runs.measurements.record import Cell, Measurement, Options, Rows


class _SequenceOptions(Options):
    sequences: int = Field(24, ge=FEWEST_GROUPS, le=10_000)
    """Drawn ones of every length; those of seed s of the sweep begin at s times as many."""


class FateOptions(_SequenceOptions):
    name: Literal["fate"] = "fate"
    target: Literal["number", "token"] | None = None


class DecodableOptions(_SequenceOptions):
    name: Literal["decodable"] = "decodable"
    target: Literal["number", "token", "position"] | None = None
    random_weights: bool = True


class ReadoutOptions(_SequenceOptions):
    name: Literal["readout"] = "readout"


def _seeds(cell: Cell) -> list[int]:
    count = int(cell.arguments["sequences"])
    return list(range(cell.seed * count, (cell.seed + 1) * count)) if tasks.task(cell.task).random else [0]


def _probe_options(cell: Cell) -> dict[str, Any]:
    """What `decodable` and `readout` take of a cell."""
    return {"lengths": cell.lengths, "dtypes": [cell.dtype], "seeds": _seeds(cell), "mitigation": cell.mitigated}


def _judged(model: TransformerBridge, cell: Cell) -> Rows:
    target = cell.arguments["target"]
    probe_task = ProbeTask.of(model, cell.task, cell.lengths, _seeds(cell), target, cell.mitigated, None)
    arm_result = arm(probe_task, [cell.dtype])
    provenance = arm_result.probes.provenance
    return arm_result.frame[list(COLUMNS)].astype(COLUMNS), replace(
        provenance, parameters={**provenance.parameters, "measurement": "fate"}
    )


def _probed(model: TransformerBridge, cell: Cell) -> Rows:
    options = {name: cell.arguments[name] for name in ("target", "random_weights")}
    result = decodable(model, cell.task, **_probe_options(cell), **options)
    target = result.provenance.parameters["target"]
    # A row's seed is the sweep's: that of the drawn sequence stands beside it.
    return result.predictions.rename(columns={"seed": "sequence"}).assign(target=target), result.provenance


def _read_out(model: TransformerBridge, cell: Cell) -> Rows:
    result = readout(model, cell.task, **_probe_options(cell))
    over = ", ".join(map(str, cell.lengths))
    return result.frame.assign(length=max(cell.lengths), over_lengths=over), result.provenance


def _verdicts(rows: Frame, provenance: Provenance) -> Fate:
    """The verdicts; what probes said place by place is not stored."""
    none = pd.DataFrame({name: [] for name in PROBED}).astype(PROBED)
    places = pd.DataFrame({"site": [], "layer": [], "depth": []})
    rows = rows if "reason" in rows else rows.assign(reason="")  # of an earlier version
    return Fate(rows[list(COLUMNS)], provenance, pd.DataFrame(), Decodable(none, provenance, places, pd.DataFrame()))


def _probes(rows: Frame, provenance: Provenance) -> Decodable:
    """Of one task, mitigation and seed, in one or several dtypes. Raises `InputError` for rows of several."""
    names = {name: _one_of(rows, name) for name in ("task", "mitigation", "target")}
    predictions: Any = rows[PREDICTION_COLUMNS].rename(columns={"sequence": "seed"}).astype({"layer": "Int64"})
    # The length alone is in no dtype: every cell has the same rows of it.
    of_length = predictions["site"] == LENGTH.site
    alone = predictions[of_length].drop_duplicates(["test", "control", "length", "seed"]).assign(dtype="none")
    predictions = pd.concat([alone, predictions[~of_length]], ignore_index=True)
    return of_predictions(predictions, names, tasks.task(names["task"]).random, provenance)


def _readings(rows: Frame, provenance: Provenance) -> Readout:
    """Of one task, mitigation and seed. Raises `InputError` for rows of several."""
    for name in ("task", "mitigation"):
        _one_of(rows, name)
    return Readout(rows[list(READ_OUT)].astype(READ_OUT), provenance)


def _one_of(rows: Frame, name: str) -> str:
    """The value of a column in which all rows are alike. Raises `InputError` where they are not."""
    values = rows[name].unique()
    if len(values) != 1:
        raise InputError(f"expected rows of one {name}, found {len(values)}: read those of each by themselves")
    return str(values[0])


def _fate_memory(shape: Shape, cell: Cell, longest: LongestPrompt) -> int:
    return fate_bytes(shape, longest, [cell.dtype], lengths=len(cell.lengths), seeds=len(_seeds(cell)), random=False)


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
"""Of the rows of `decodable`: its predictions."""
FATE = Measurement(FateOptions, _fate_memory, _judged, _verdicts, casts=True, depends_on_lengths=True)
DECODABLE = Measurement(DecodableOptions, _probes_memory, _probed, _probes, casts=True, depends_on_lengths=True)
READOUT = Measurement(ReadoutOptions, _probes_memory, _read_out, _readings, casts=True, depends_on_lengths=True)
