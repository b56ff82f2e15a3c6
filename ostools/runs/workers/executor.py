"""What an executor is: it takes the cells of a sweep and gives each back with its rows, or with what went wrong.

It stores nothing. Wherever a cell is measured, the checkpoint and the code are checked to be those that its key was made of.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ostools.runs.forecast import Forecast
from ostools.runs.measurements.record import Rows
from ostools.runs.stored.store import KeyedCell


@dataclass(frozen=True)
class Job:
    """A cell that is to be measured, and the memory that it is forecast to take."""

    keyed_cell: KeyedCell
    forecast: Forecast


@dataclass(frozen=True)
class Terms:
    """What every cell is measured under: the device, the hash of each model's checkpoint, the version of the code; and where
    those weights lie that are not on the device, on which no number depends."""

    device: str
    checkpoints: Mapping[str, str]
    code: str
    device_map: str | None = None


CellOutcome: TypeAlias = tuple[KeyedCell, Rows | str]
"""A cell with its rows and their provenance, or with the error in words."""


class Executor(ABC):
    """Who measures: this process, or the workers of a cluster."""

    @abstractmethod
    def device(self, device: str) -> str:
        """The device that a sweep's `device` means to whoever measures. Raises `InputError` where there is none."""

    @abstractmethod
    def measure(self, jobs: Sequence[Job], terms: Terms) -> Generator[CellOutcome, None, None]:
        """Every job once, in any order. Closed early where a run ends early."""
