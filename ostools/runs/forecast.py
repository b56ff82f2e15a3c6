"""What a cell of a sweep holds in memory, before its model is loaded (`measure.unloaded`)."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ostools import tasks
from ostools.ground.errors import INTERRUPTS
from ostools.measure.elicitation import Elicitation
from ostools.measure.passes.batches import LongestPrompt
from ostools.measure.swept import Cell
from ostools.measure.unloaded import LIBRARIES, Forecast, Unloaded, longest_prompt, source_elicitation
from ostools.models.files.sources import Source
from ostools.runs.cells import to_load
from ostools.runs.measurements import MEASUREMENTS
from ostools.runs.sweep_file import form_of
from ostools.theory.distances import dtype_named


def forecast(cell: Cell, source: Source, device: str, device_map: str | None = None) -> Forecast:
    """What measuring `cell` on the model at `source` will hold, the loaded model included.

    Of a cell that cannot be measured (a model that is not whole, a length that a task cannot have) it forecasts nothing: the
    error comes when the cell is measured.
    """
    kind = device.partition(":")[0]
    try:
        model = Unloaded(source, dtype_named(to_load(cell)[1]), kind, device_map)
        work = MEASUREMENTS[cell.measurement].swept.memory(model.shape, cell, _longest_of(cell, source))
        return model.forecast(work)
    except INTERRUPTS:
        raise
    except BaseException:  # of a plugin or a broken checkpoint: it is for the cell to fail
        return Forecast(LIBRARIES if kind == "cpu" else 0)


def _longest_of(cell: Cell, source: Source) -> LongestPrompt:
    elicitation = None
    if cell.measurement == "evaluate":
        elicitation = source_elicitation(tasks.task(cell.task), source, cell.arguments.get("elicitation"), None)
    return _longest_of_cell(replace(cell, model="", dtype="", options=""), source.directory, elicitation)


@lru_cache(maxsize=256)
def _longest_of_cell(cell: Cell, directory: Path, elicitation: Elicitation | None) -> LongestPrompt:
    """Of a cell without what changes no token."""
    form, pairs = form_of(cell.task, cell.measurement), MEASUREMENTS[cell.measurement].swept.pairs
    how: Any = {"seed": cell.seed, "mitigation": cell.mitigated, "pairs": pairs, "elicitation": elicitation}
    return longest_prompt(form, directory, max(cell.lengths), **how)
