"""Run a sweep, and resume it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from ostools.ground import InputError, Progress, checked_arguments, in_words, tell
from ostools.measure.swept import TOO_SHORT, Rows
from ostools.sweep.cells import KeyedCell, cells_of, checkpoint_hash, code_version, keyed
from ostools.sweep.executor import (
    Executor,
    Terms,
    ThisProcess,
    source_of,
    weights_dtype,
)
from ostools.sweep.store import Failure, Store, file_of
from ostools.sweep.sweep_file import Sweep


@dataclass(frozen=True)
class SweepPlan:
    """Cells of a sweep (`keyed_cells`), what of them is to be measured
    (`pending`), what failed before and stays so (`failed`), and the terms of every cell."""

    keyed_cells: tuple[KeyedCell, ...]
    pending: tuple[KeyedCell, ...]
    failed: tuple[Failure, ...]
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
    failed = [failures[keyed_cell.key] for keyed_cell in missing if keyed_cell.key in failures]
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
        for record in cells.failed:
            say(f"failed before: {record}")
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
    return Outcome(len(cells.pending) - len(failed), present, (*map(str, cells.failed), *failed))


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
