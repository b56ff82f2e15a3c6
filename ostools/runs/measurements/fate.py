"""`ost.fate` in a sweep: where answers are lost, a verdict a length; under a mitigation that arm alone.

It stands for `ost.decodable` too: a row has the best probe's share of right answers. Whatever is one number for all lengths
(`decodable` place by place, `readout`) has no row at a length, and is asked by itself.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pandas as pd
from pydantic import Field
from transformer_lens.model_bridge import TransformerBridge

from ostools import tasks
from ostools.measure import Decodable, Fate
from ostools.measure.fate.cost import fate_cost
from ostools.measure.fate.decodable import COLUMNS as PROBED
from ostools.measure.fate.decodable import Asked, default_target
from ostools.measure.fate.fate import COLUMNS, arm
from ostools.measure.fate.splits import FEWEST_GROUPS
from ostools.measure.passes.cost import Cost, PromptTokens
from ostools.models.shape import Shape
from ostools.results import Frame, Provenance
from ostools.runs.measurements.record import Cell, Measurement, Options, Rows


class FateOptions(Options):
    name: Literal["fate"] = "fate"
    target: Literal["number", "token"] | None = None
    sequences: int = Field(24, ge=FEWEST_GROUPS, le=10_000)
    """Drawn ones of every length; those of seed s of the sweep begin at s times as many."""


def _seeds(cell: Cell) -> list[int]:
    count = int(cell.arguments["sequences"])
    return list(range(cell.seed * count, (cell.seed + 1) * count)) if tasks.task(cell.task).random else [0]


def _measure(model: TransformerBridge, cell: Cell) -> Rows:
    target = cell.arguments["target"]
    asked = Asked.of(model, cell.task, cell.lengths, _seeds(cell), target, cell.mitigated, None)
    found = arm(asked, [cell.dtype])
    provenance = found.probes.provenance
    return found.frame[list(COLUMNS)].astype(COLUMNS), replace(
        provenance, parameters={**provenance.parameters, "measurement": "fate"}
    )


def _read(rows: Frame, provenance: Provenance) -> Fate:
    """The verdicts; what probes said place by place is not stored."""
    none = pd.DataFrame({name: [] for name in PROBED}).astype(PROBED)
    places = pd.DataFrame({"site": [], "layer": [], "depth": []})
    return Fate(rows[list(COLUMNS)], provenance, pd.DataFrame(), Decodable(none, provenance, places, pd.DataFrame()))


def _count(shape: Shape, cell: Cell, tokens: PromptTokens) -> Cost:
    target = cell.arguments["target"] or default_target(tasks.task(cell.task))
    return fate_cost(shape, tokens, tokens, [cell.dtype], target=target, seeds=len(_seeds(cell)), random=False)


FATE = Measurement(FateOptions, _count, _measure, _read, casts=True, whole=True)
