"""What a cell of a sweep holds in memory, before its model is loaded (`measure.unloaded`)."""

from __future__ import annotations

import inspect
from typing import Any

from ostools.ground.errors import INTERRUPTS
from ostools.measure.swept import Cell
from ostools.measure.unloaded import LIBRARIES, Forecast, Unloaded
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
        return model.forecast(_work(cell, model))
    except INTERRUPTS:
        raise
    except BaseException:  # of a plugin or a broken checkpoint: it is for the cell to fail
        return Forecast(LIBRARIES if kind == "cpu" else 0)


def _work(cell: Cell, model: Unloaded) -> int:
    """Bytes that the measurement's own function of memory says, of the cell's arguments."""
    measurement, form = MEASUREMENTS[cell.measurement], form_of(cell.task, cell.measurement)
    names = inspect.signature(measurement.memory).parameters
    values: dict[str, Any] = {"task": form, "lengths": cell.lengths, "dtypes": [cell.dtype], "seeds": cell.seeds}
    values |= {"mitigation": cell.mitigated, **cell.arguments, **measurement.swept.fixed}
    if "pos" in names:
        values["pos"] = model.longest(form, cell.lengths, mitigation=cell.mitigated, seed=cell.seed).tokens
    return measurement.memory(model, **{name: value for name, value in values.items() if name in names})
