"""Run a sweep in this process, resume it, and read it back as one table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from transformer_lens.model_bridge import TransformerBridge

from ostools.errors import InputError
from ostools.measure.prompts import Progress
from ostools.models import load_model
from ostools.models.load import resolve_device
from ostools.models.sources import locate
from ostools.reporting.frames import Frame
from ostools.runs.cells import base_key, cells_of, checkpoint_hash
from ostools.runs.measuring import measure
from ostools.runs.store import MANIFEST, Store, Wanted, missing, read
from ostools.runs.sweep import Sweep


@dataclass(frozen=True)
class Plan:
    """What a sweep asks (`wanted`), and what of it is not there yet (`pending`: cells of only the missing lengths)."""

    wanted: tuple[Wanted, ...]
    pending: tuple[Wanted, ...]


@dataclass(frozen=True)
class Outcome:
    """How a run ended: how many cells it measured, how many were there before, and which failed, in words."""

    measured: int
    present: int
    failed: tuple[str, ...]


def plan(
    sweep: Sweep, directory: Path, *, retry_failed: bool = False, say: Callable[[str], None] = lambda text: None
) -> Plan:
    """The cells of a sweep and which of them are missing in `directory`. Cost: hashing every checkpoint once.

    Raises `InputError` for a model that is not there and for a directory that holds something else.
    """
    device = resolve_device(sweep.device).type
    hashes = {name: checkpoint_hash(locate(name, None)) for name in sweep.models}
    wanted = tuple(Wanted(cell, base_key(cell, hashes[cell.model], device)) for cell in cells_of(sweep))
    store = Store(directory, say)
    stored, failures = store.stored(), [] if retry_failed else store.failures()
    left = (missing(one, stored.get(one.base, []), failures) for one in wanted)
    return Plan(wanted, tuple(one for one in left if one is not None))


def run(
    sweep: Sweep,
    directory: str | Path,
    *,
    retry_failed: bool = False,
    say: Callable[[str], None] = lambda text: None,
    progress: Progress | None = None,
) -> Outcome:
    """Measure every cell of `sweep` that `directory` lacks, one after the other, each model loaded once in a dtype.

    Args:
        retry_failed: cells that failed before are tried again; else they stay failed.
        say: told of every broken file and every failure, in one line each.
        progress: called as progress(done, total) in cells.

    A cell that fails is recorded with its error, and the others go on. Killed at any moment, the same call resumes. Raises
    `InputError` where the directory cannot be written or another run is writing to it.
    """
    target = Path(directory)
    store = Store(target, say)
    with store.locked():
        found = plan(sweep, target, retry_failed=retry_failed, say=say)
        store.ask(list(found.wanted))
        failed = _measure_all(store, found.pending, sweep.device, say, progress)
    return Outcome(len(found.pending) - len(failed), len(found.wanted) - len(found.pending), tuple(failed))


def _measure_all(
    store: Store, pending: Sequence[Wanted], device: str, say: Callable[[str], None], progress: Progress | None
) -> list[str]:
    """Each pending cell, in order; what failed, in words."""
    failed: list[str] = []
    held: tuple[tuple[str, str], TransformerBridge] | None = None
    for index, one in enumerate(pending):
        try:
            if held is None or held[0] != one.cell.loads:
                held = None  # the last model's memory is free before the next is loaded
                name, dtype = one.cell.loads
                held = one.cell.loads, load_model(name, dtype=dtype, device=device)
            store.add(one, *measure(held[1], one.cell))
        except Exception as error:  # whatever a cell or a plugin raises: recorded, said, and the sweep goes on
            said = " ".join(f"{type(error).__name__}: {error}".split())
            store.fail(one, said)
            failed.append(f"{one.cell}: {said}")
            say(failed[-1])
        if progress is not None:
            progress(index + 1, len(pending))
    return failed


def results(directory: str | Path, *, say: Callable[[str], None] = lambda text: None) -> Frame:
    """The tidy table of a sweep, complete or not: every row that was asked for and measured, in the order of the cells.

    Columns model, task, dtype, mitigation, seed and measurement say which cell a row is of; NA where a measurement has no such
    column. Raises `InputError` for a directory without a sweep.
    """
    target = Path(directory)
    if not (target / MANIFEST).is_file():
        raise InputError(f"{target}: expected the directory of a sweep, found no {MANIFEST} in it; give what --out was")
    store = Store(target, say)
    stored = store.stored()
    tables: list[Any] = []
    for one in store.asked():
        rows = read(stored.get(one.base, []))
        if rows:
            together: Any = pd.concat(rows, ignore_index=True)
            asked = together[together["length"].isin(one.cell.lengths)]
            tables.append(asked.sort_values(by="length", kind="stable"))
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()
