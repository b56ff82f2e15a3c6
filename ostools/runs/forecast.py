"""What a cell of a sweep will take, in seconds and bytes, before its model is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from ostools.models.sources import Source
from ostools.runs.cells import Cell


@dataclass(frozen=True)
class Forecast:
    """A forecast, not a measurement. `seconds`: on the machine where it was made; `memory`: bytes at the peak, the model's own
    among them."""

    seconds: float
    memory: int


def forecast(cell: Cell, source: Source, device: str) -> Forecast:
    """What measuring `cell` on the model at `source` will take."""
    weights = sum(path.stat().st_size for path in source.directory.glob("*.safetensors"))
    return Forecast(seconds=0.0, memory=2 * weights)
