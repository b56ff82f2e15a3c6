"""Run a sweep, and resume it. Its executors: each takes cells, and gives every one back with its
rows, or with what went wrong in words.

An executor stores nothing. Wherever a cell is measured, the checkpoint and the code are checked to
be those that its key was made of. `ThisProcess` measures one cell after the other; `ray_cluster`
has the executor of a cluster.
"""

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import torch

from ostools import tasks
from ostools.ground import (
    InputError,
    Progress,
    TransformerBridge,
    checked_arguments,
    in_words,
    tell,
)
from ostools.hooks.torch_state import enough_threads
from ostools.measure.memory import bytes_of
from ostools.measure.swept import TOO_SHORT, Cell, Rows
from ostools.measure.unloaded import LIBRARIES, Forecast, Unloaded
from ostools.models.files.checkpoint import Checkpoint
from ostools.models.files.sources import locate
from ostools.models.precision.scores import arithmetic_named
from ostools.models.shape import resolve_device
from ostools.sweep.cells import (
    MEASUREMENTS,
    KeyedCell,
    checkpoint_hash,
    code_version,
    keyed,
    measure,
    to_load,
)
from ostools.sweep.store import Store, file_of
from ostools.sweep.sweep_file import Sweep, cells_of
from ostools.tasks import RepeatedIds


@dataclass(frozen=True)
class Terms:
    """What every cell is measured under: the device, the hash of each model's checkpoint, the
    version of the code."""

    device: str
    checkpoints: Mapping[str, str]
    code: str

    @property
    def kind(self) -> str:
        """The device without its number."""
        return self.device.partition(":")[0]

    def require_same(self, keyed_cell: KeyedCell) -> None:
        """Refuse versions, plugins and files that are others, on this node, than the key says."""
        cell, planned = keyed_cell.cell, "that the sweep was planned with, found others"
        if code_version() != self.code:
            raise InputError(f"expected the versions {planned} here")
        if keyed(cell, self.checkpoints[cell.model], self.kind) != keyed_cell:
            raise InputError(f"expected the plugins and files {planned} on {os.uname().nodename}")


def weights_dtype(cell: Cell) -> torch.dtype:
    """The dtype in which the weights of the cell's model are loaded."""
    return arithmetic_named(to_load(cell)[1])[0]


def source_of(cell: Cell) -> Checkpoint:
    """Where the cell's model lies, as it is loaded for this cell."""
    return locate(cell.model, None, weights_dtype(cell))


def forecast(cell: Cell, device: str) -> Forecast:
    """What measuring `cell` will hold, the loaded model included.

    Of a cell that cannot be measured (a model that is not whole, a length that a task cannot have)
    it forecasts nothing: the error comes when the cell is measured.
    """
    kind = device.partition(":")[0]
    try:
        model = Unloaded(source_of(cell), weights_dtype(cell), kind)
        return model.forecast(_work(cell, model))
    except Exception:  # of a plugin or a broken checkpoint: it is for the cell to fail
        return Forecast(LIBRARIES if kind == "cpu" else 0)


def _work(cell: Cell, model: Unloaded) -> int:
    measurement = MEASUREMENTS[cell.measurement]
    values = {**cell.arguments, "lengths": cell.lengths}
    values |= {"mitigation": cell.mitigated, "dtypes": [cell.dtype]}
    if cell.text is None:
        values |= {"task": tasks.task(cell.task), "seeds": [cell.seed]}
        return bytes_of(measurement.function, model, **values)
    # The longest window: of a measurement of pairs by a task of as many tokens.
    if measurement.swept.casts:
        return bytes_of(measurement.function, model, task=RepeatedIds((0,)), **values)
    return bytes_of(measurement.function, model, cell.lengths[-1], **values)


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
    def measure(
        self, cells: Sequence[KeyedCell], terms: Terms
    ) -> Generator[CellOutcome, None, None]:
        """Every cell once, in any order. Closed early where a run ends early."""


class ThisProcess(Executor):
    """The executor of one machine: one cell after the other."""

    def device(self, device: str) -> str:
        return str(resolve_device(device))

    def measure(
        self, cells: Sequence[KeyedCell], terms: Terms
    ) -> Generator[CellOutcome, None, None]:
        bench = Bench(terms)
        for keyed_cell in cells:
            yield keyed_cell, bench.measure(keyed_cell)


class Bench:
    """Holds one model at a time and measures cells with it."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self._loaded: tuple[tuple[str, str], TransformerBridge] | None = None

    def measure(self, keyed_cell: KeyedCell) -> Rows | str:
        """The rows of a cell, or whatever it, or a plugin in it, raised, in one line.

        The seconds that it took are in the provenance: rows hold numbers alone.
        """
        start, cell = time.perf_counter(), keyed_cell.cell
        try:
            self.terms.require_same(keyed_cell)
            model = self._model(cell)
            with enough_threads([model]):
                table, provenance = measure(model, cell)
        except Exception as error:
            return in_words(error)
        took = {**provenance.parameters, "cell_seconds": time.perf_counter() - start}
        return table, replace(provenance, parameters=took)

    def _model(self, cell: Cell) -> TransformerBridge:
        from ostools.models import load_model

        name, dtype = loads = to_load(cell)
        if self._loaded is None or self._loaded[0] != loads:
            self._loaded = None  # the last model's memory is free before the next is loaded
            if checkpoint_hash(source_of(cell)) != self.terms.checkpoints[name]:
                raise InputError(
                    f"expected the checkpoint of {name!r} that the sweep was planned with, found "
                    "another one here"
                )
            self._loaded = loads, load_model(name, dtype=dtype, device=self.terms.device)
        return self._loaded[1]


@dataclass(frozen=True)
class SweepPlan:
    """Cells of a sweep (`keyed_cells`), what of them is to be measured
    (`pending`), what failed before and stays so (`failed`), and the terms of every cell."""

    keyed_cells: tuple[KeyedCell, ...]
    pending: tuple[KeyedCell, ...]
    failed: tuple[str, ...]
    terms: Terms


@dataclass(frozen=True)
class Outcome:
    """How a run ended: how many cells it measured, how many were there before, and which failed,
    now or before, in words.
    """

    measured: int
    present: int
    failed: tuple[str, ...]


@checked_arguments(InputError)
def plan(
    sweep: Sweep,
    directory: str | Path,
    *,
    executor: Executor | None = None,
    retry_failed: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> SweepPlan:
    """The cells of a sweep, and which of them `directory` lacks. Cost: every checkpoint is hashed
    once.

    Raises `InputError` for a model that is not there, and for a directory that holds something
    else.
    """
    store = Store(Path(directory), say)
    store.require_ours()
    cells = cells_of(sweep)
    by_width = sorted(cells, key=lambda cell: weights_dtype(cell).itemsize)
    located = {cell.model: source_of(cell) for cell in by_width}  # the widest is the last
    hashes = {name: checkpoint_hash(source) for name, source in located.items()}
    device = (executor or ThisProcess()).device(sweep.device)
    terms = Terms(device, hashes, code_version())
    keyed_cells = [keyed(cell, hashes[cell.model], terms.kind) for cell in cells]
    stored = store.files({keyed_cell.key for keyed_cell in keyed_cells})
    failures = {} if retry_failed else store.failures()
    missing = [keyed_cell for keyed_cell in keyed_cells if keyed_cell.key not in stored]
    failed = [
        f"{keyed_cell.cell}: {failures[keyed_cell.key]}"
        for keyed_cell in missing
        if keyed_cell.key in failures
    ]
    pending = [keyed_cell for keyed_cell in missing if keyed_cell.key not in failures]
    return SweepPlan(tuple(keyed_cells), tuple(pending), tuple(failed), terms)


@checked_arguments(InputError)
def run(
    sweep: Sweep,
    directory: str | Path,
    *,
    executor: Executor | None = None,
    retry_failed: bool = False,
    say: Callable[[str], None] = lambda text: None,
    progress: Progress | None = None,
) -> Outcome:
    """Measure every cell of `sweep` that `directory` lacks. Each process loads each model once for
    each dtype.

    Args:
        executor: what measures; None: this process, one cell after the other.
        retry_failed: whether cells that failed before are tried again. Otherwise they stay failed.
        say: called with one line for every broken file and every failure.
        progress: called as progress(done, total) in cells.

    A cell that fails is recorded with its error, and the others go on. If the run is killed at any
    moment, the same call resumes. Raises `InputError` if the directory cannot be written, or
    another run is writing to it.
    """
    store, executor = Store(Path(directory), say), executor or ThisProcess()
    with store.locked():
        cells = plan(sweep, directory, executor=executor, retry_failed=retry_failed, say=say)
        if count := store.ask(cells.keyed_cells):
            say(f"{count} measured cells are not of this sweep as it is now: no table has them")
        for reason in cells.failed:
            say(f"failed before: {reason}")
        failed: list[str] = []
        tell(progress, 0, len(cells.pending))
        # Closed here and now, however it ends: an executor may hold workers.
        with closing(executor.measure(cells.pending, cells.terms)) as outcomes:
            for index, (keyed_cell, rows) in enumerate(outcomes):
                if error := _store(store, keyed_cell, rows, cells.terms):
                    store.fail(keyed_cell, error)
                    failed.append(f"{keyed_cell.cell}: {error}")
                    say(failed[-1])
                tell(progress, index + 1, len(cells.pending))
    present = len(cells.keyed_cells) - len(cells.pending) - len(cells.failed)
    return Outcome(len(cells.pending) - len(failed), present, (*cells.failed, *failed))


def _store(store: Store, keyed_cell: KeyedCell, rows: Rows | str, terms: Terms) -> str:
    """Store the rows of a cell, and return "". Return the error in words where there are none, and
    where a table cannot hold them, such as a plugin's own values."""
    if isinstance(rows, str):
        return rows
    checkpoint = terms.checkpoints[keyed_cell.cell.model]
    try:
        content = file_of(*rows, code=terms.code, checkpoint=checkpoint)
    except Exception as error:  # of pyarrow: of many kinds
        return f"the rows cannot be stored: {in_words(error)}"
    store.add(keyed_cell, content)
    if too_short := rows[1].parameters.get(TOO_SHORT):
        store.say(f"{keyed_cell.cell}: the text is too short for {too_short} tokens")
    return ""
