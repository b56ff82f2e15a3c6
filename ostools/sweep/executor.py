"""Executors of a sweep: each takes cells, and gives every one back with its rows, or with what went
wrong in words.

An executor stores nothing. Wherever a cell is measured, the checkpoint and the code are checked to
be those that its key was made of. `ThisProcess` measures one cell after the other; `ray_cluster`
has the executor of a cluster.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch

from ostools.ground.arguments import full_signature
from ostools.ground.errors import INTERRUPTS, InputError, InsufficientMemoryError, in_words
from ostools.ground.lens import TransformerBridge
from ostools.ground.memory import available_memory, free_memory
from ostools.ground.out_of_memory import (
    chunks_that_fit,
    free_what_is_left,
    is_out_of_memory,
)
from ostools.measure.swept import Cell, Rows
from ostools.measure.unloaded import LIBRARIES, Forecast, Unloaded
from ostools.models.devices import resolve_device
from ostools.models.files.checkpoint import Checkpoint
from ostools.models.files.sources import locate
from ostools.models.precision.scores import arithmetic_named
from ostools.models.shape import enough_threads
from ostools.sweep.cells import KeyedCell, base_key, checkpoint_hash, code_version, to_load
from ostools.sweep.measurements import MEASUREMENTS, measure
from ostools.sweep.sweep_file import form_of


@dataclass(frozen=True)
class Job:
    """A cell that is to be measured, and the memory that it is forecast to take."""

    keyed_cell: KeyedCell
    forecast: Forecast


@dataclass(frozen=True)
class Terms:
    """What every cell is measured under: the device, the hash of each model's checkpoint, the
    version of the code; and where those weights lie that are not on the device, on which no number
    depends."""

    device: str
    checkpoints: Mapping[str, str]
    code: str
    device_map: str | None = None


def weights_dtype(cell: Cell) -> torch.dtype:
    """The dtype in which the weights of the cell's model are loaded."""
    return arithmetic_named(to_load(cell)[1])[0]


def source_of(cell: Cell) -> Checkpoint:
    """Where the cell's model lies, as it is loaded for this cell."""
    return locate(cell.model, None, weights_dtype(cell))


def forecast(
    cell: Cell, source: Checkpoint, device: str, device_map: str | None = None
) -> Forecast:
    """What measuring `cell` on the model at `source` will hold, the loaded model included.

    Of a cell that cannot be measured (a model that is not whole, a length that a task cannot have)
    it forecasts nothing: the error comes when the cell is measured.
    """
    kind = device.partition(":")[0]
    try:
        model = Unloaded(source, weights_dtype(cell), kind, device_map)
        return model.forecast(_work(cell, model))
    except INTERRUPTS:
        raise
    except BaseException:  # of a plugin or a broken checkpoint: it is for the cell to fail
        return Forecast(LIBRARIES if kind == "cpu" else 0)


def _work(cell: Cell, model: Unloaded) -> int:
    measurement, form = MEASUREMENTS[cell.measurement], form_of(cell.task, cell.measurement)
    names = full_signature(measurement.memory).parameters
    values: dict[str, Any] = {
        "task": form,
        "lengths": cell.lengths,
        "dtypes": [cell.dtype],
        "seeds": cell.seeds,
    }
    values |= {"mitigation": cell.mitigated, **cell.arguments, **measurement.swept.fixed}
    if "pos" in names:
        longest = model.longest(form, cell.lengths, mitigation=cell.mitigated, seed=cell.seed)
        values["pos"] = longest.tokens + longest.answer
    return measurement.memory(
        model, **{name: value for name, value in values.items() if name in names}
    )


CellOutcome: TypeAlias = tuple[KeyedCell, Rows | str]
"""A cell with its rows and their provenance, or with the error in words."""


class Executor(ABC):
    """Who measures: this process, or the workers of a cluster."""

    @abstractmethod
    def device(self, device: str) -> str:
        """The device that a sweep's `device` means to whoever measures. Raises `InputError` where
        there is none.
        """

    @abstractmethod
    def measure(self, jobs: Sequence[Job], terms: Terms) -> Generator[CellOutcome, None, None]:
        """Every job once, in any order. Closed early where a run ends early."""


class ThisProcess(Executor):
    """The executor of one machine: one cell after the other."""

    def device(self, device: str) -> str:
        return str(resolve_device(device))

    def measure(self, jobs: Sequence[Job], terms: Terms) -> Generator[CellOutcome, None, None]:
        bench = Bench(terms)
        for job in jobs:
            yield job.keyed_cell, bench.measure_planned(job.keyed_cell)


class Bench:
    """Holds one model at a time and measures cells with it."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self._loaded: tuple[tuple[str, str], TransformerBridge] | None = None

    def measure_planned(self, keyed_cell: KeyedCell) -> Rows | str:
        """`measure`, where the plugins and files that the key was made of are still, on this node,
        what they were.
        """
        cell, terms = keyed_cell.cell, self.terms
        try:
            key = base_key(cell, terms.checkpoints[cell.model], terms.device.partition(":")[0])
        except INTERRUPTS:
            raise
        except BaseException as error:  # a file that is gone, a plugin that another node lacks
            return in_words(error)
        if key != keyed_cell.base:
            return f"expected the plugins and files that the sweep was planned with, found others on {os.uname().nodename}"
        return self.measure(cell)

    def measure(self, cell: Cell) -> Rows | str:
        """The rows of a cell, or whatever it, or a plugin in it, raised, in one line.

        Where memory runs out it is tried again in smaller chunks; then the failure says what was
        forecast and what there is. The seconds that it took, and the share of the chunks, are in
        the provenance: rows hold numbers alone.
        """
        start, model = time.perf_counter(), None
        try:
            model = self._model(cell)
            with enough_threads([model]):
                (table, provenance), share = chunks_that_fit(
                    lambda: measure(model, cell),
                    lambda error: InsufficientMemoryError(in_words(error)),
                )
            took: dict[str, Any] = {"cell_seconds": time.perf_counter() - start}
            took |= {} if share == 1.0 else {"chunk_share": share}
            return table, replace(provenance, parameters={**provenance.parameters, **took})
        except INTERRUPTS:
            raise
        except (
            BaseException
        ) as error:  # a plugin's sys.exit(), or a panic of a library in Rust, ends its cell alone
            words = str(error) if isinstance(error, InsufficientMemoryError) else in_words(error)
            if not is_out_of_memory(error):
                return words
        free_what_is_left()  # behind the handler: until then the error's traceback holds what did not fit
        return self._lacking(
            "while the model was loaded" if model is None else "while it was measured", cell, words
        )

    def _lacking(self, stage: str, cell: Cell, words: str) -> str:
        device = self.terms.device
        needed = forecast(cell, source_of(cell), device, self.terms.device_map).memory
        free = available_memory(torch.device(device))
        limit = free_memory() if device == "cpu" else f"{free / 2**30:.2f} GiB free on {device}"
        return f"out of memory {stage}: forecast {needed / 2**30:.2f} GiB, {limit} ({words})"

    def _model(self, cell: Cell) -> TransformerBridge:
        name, dtype = loads = to_load(cell)
        if self._loaded is None or self._loaded[0] != loads:
            self._loaded = None  # the last model's memory is free before the next is loaded
            if checkpoint_hash(source_of(cell)) != self.terms.checkpoints[name]:
                raise InputError(
                    f"expected the checkpoint of {name!r} that the sweep was planned with, found another one here"
                )
            if code_version() != self.terms.code:
                raise InputError(
                    "expected the versions that the sweep was planned with, found others here"
                )
            where = {"device": self.terms.device, "device_map": self.terms.device_map}
            from ostools.models import load_model

            self._loaded = loads, load_model(name, dtype=dtype, **where)
        return self._loaded[1]
