"""Measures the cells of a sweep in this process, one after the other. What fails is given back in words."""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformer_lens.model_bridge import TransformerBridge

from ostools.ground.chunks import smaller_chunks
from ostools.ground.errors import INTERRUPTS, InputError, in_words
from ostools.ground.memory import available_memory, free_memory
from ostools.ground.out_of_memory import SMALLEST, free_what_is_left, held_to_what_is_free, is_out_of_memory
from ostools.models import load_model
from ostools.models.files.sources import locate
from ostools.models.load import resolve_device
from ostools.models.shape import enough_threads
from ostools.runs.asked.cells import base_key, checkpoint_hash, code_version, to_load
from ostools.runs.forecast import forecast
from ostools.runs.measurements import measure
from ostools.runs.measurements.record import Cell, Rows
from ostools.runs.stored.store import KeyedCell
from ostools.runs.workers.executor import CellOutcome, Executor, Job, Terms


@dataclass(frozen=True)
class _Lacked:
    """Memory ran out: in words, and whether the model itself did not fit."""

    message: str
    loading: bool


class Bench:
    """Holds one model at a time and measures cells with it."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self._held: tuple[tuple[str, str], TransformerBridge] | None = None

    def measure_planned(self, keyed_cell: KeyedCell) -> Rows | str:
        """`measure`, where the plugins and files that the key was made of are still, and here, what they were."""
        cell, terms = keyed_cell.cell, self.terms
        try:
            key = base_key(cell, terms.checkpoints[cell.model], terms.device.partition(":")[0])
        except INTERRUPTS:
            raise
        except BaseException as error:  # a file that is gone, a plugin that another node lacks
            return in_words(error)
        if key != keyed_cell.base:
            return (
                f"expected the plugins and files that the sweep was planned with, found others on {os.uname().nodename}"
            )
        return self.measure(cell)

    def measure(self, cell: Cell) -> Rows | str:
        """The rows of a cell, or whatever it, or a plugin in it, raised, in one line.

        Where memory runs out: in chunks half as large, down to a sixteenth; then the failure says what was forecast and what
        there is. The seconds that it took, and the share of the chunks, are in the provenance: rows hold numbers alone.
        """
        lacked, share = "", 1.0
        while share >= SMALLEST:
            outcome = self._attempt(cell, share)
            if not isinstance(outcome, _Lacked):
                return f"{lacked}; in smaller chunks: {outcome}" if lacked and isinstance(outcome, str) else outcome
            lacked = lacked or outcome.message
            if outcome.loading:
                break
            share /= 2
        return lacked

    def _attempt(self, cell: Cell, share: float) -> Rows | str | _Lacked:
        start, model = time.perf_counter(), None
        try:
            model = self._model(cell)
            with enough_threads([model]), smaller_chunks(share), held_to_what_is_free(self.terms.device):
                table, provenance = measure(model, cell)
            took: dict[str, Any] = {"cell_seconds": time.perf_counter() - start}
            how = took if share == 1.0 else took | {"chunk_share": share}
            return table, replace(provenance, parameters={**provenance.parameters, **how})
        except INTERRUPTS:
            raise
        except BaseException as error:  # a plugin's sys.exit(), or a panic of a library in Rust, ends its cell alone
            words = in_words(error)
            if not is_out_of_memory(error):
                return words
        # Behind the handler: until then the error's traceback holds what did not fit.
        free_what_is_left()
        needed = forecast(cell, locate(cell.model, None), self.terms.device, self.terms.device_map)
        free = available_memory(torch.device(self.terms.device))
        where = "while the model was loaded" if model is None else "while it was measured"
        limit = free_memory() if self.terms.device == "cpu" else f"{free / 2**30:.2f} GiB free on {self.terms.device}"
        return _Lacked(
            f"out of memory {where}: forecast {needed.memory / 2**30:.2f} GiB, {limit} ({words})", model is None
        )

    def _model(self, cell: Cell) -> TransformerBridge:
        name, dtype = loads = to_load(cell)
        if self._held is None or self._held[0] != loads:
            self._held = None  # the last model's memory is free before the next is loaded
            self._require_same(name)
            where = {"device": self.terms.device, "device_map": self.terms.device_map}
            self._held = loads, load_model(name, dtype=dtype, **where)
        return self._held[1]

    def _require_same(self, name: str) -> None:
        """The key promises which checkpoint and which code a number comes from."""
        if checkpoint_hash(locate(name, None)) != self.terms.checkpoints[name]:
            raise InputError(
                f"expected the checkpoint of {name!r} that the sweep was planned with, found another one here"
            )
        if code_version() != self.terms.code:
            raise InputError("expected the code and versions that the sweep was planned with, found others here")


class ThisProcess(Executor):
    """The executor of one machine: one cell after the other."""

    def device(self, device: str) -> str:
        return str(resolve_device(device))

    def measure(self, jobs: Sequence[Job], terms: Terms) -> Generator[CellOutcome, None, None]:
        bench = Bench(terms)
        for job in jobs:
            yield job.keyed_cell, bench.measure_planned(job.keyed_cell)
