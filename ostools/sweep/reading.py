"""Reads the directory of a sweep: what was asked, what of it is there, and its rows as one table.

Cost: one read of every file that was asked for, its bytes held against the hash in its name; about
a millisecond a file.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from ostools.ground.arguments import checked_arguments
from ostools.ground.errors import InputError
from ostools.ground.files import checked_path
from ostools.results import Frame
from ostools.sweep.cell_file import MADE_BY, PLACE, CellFile
from ostools.sweep.cells import KeyedCell
from ostools.sweep.store import MANIFEST, Failure, Store

_CELL = ("model", "task", "dtype", "mitigation", "seed", "measurement", "options")
STATES = ("measured", "failed", "missing")
"""States of a cell: all of it is measured; what is not measured has failed; something is still to
be measured.
"""


@dataclass(frozen=True)
class AskedCell:
    """A cell that was asked for, and what there is of it: the lengths that are `measured`, the
    records of the others that failed, and of each of its files what its numbers come from
    (`Provenance` as a mapping)."""

    keyed_cell: KeyedCell
    measured: tuple[int, ...]
    failures: tuple[Failure, ...] = ()
    sources: tuple[Mapping[str, Any], ...] = ()

    @property
    def missing(self) -> tuple[int, ...]:
        """The lengths that are neither measured nor recorded as failed."""
        known_lengths = {
            *self.measured,
            *(length for record in self.failures for length in record.lengths),
        }
        return tuple(
            length for length in self.keyed_cell.cell.lengths if length not in known_lengths
        )

    @property
    def state(self) -> str:
        """One of `STATES`."""
        if self.missing:
            return "missing"
        return "failed" if self.failures else "measured"


@dataclass(frozen=True)
class SweepReading:
    """A sweep as its directory holds it, complete or not: its cells in the order in which they were
    asked, and their rows by measurement, each with the place of its cell."""

    directory: Path
    cells: tuple[AskedCell, ...]
    tables: Mapping[str, Frame]

    def of(self, state: str) -> list[AskedCell]:
        return [cell for cell in self.cells if cell.state == state]

    def rows(self, measurement: str) -> Frame:
        """The rows of one measurement, with its own columns only; empty where there are none."""
        table = self.tables.get(measurement)
        return pd.DataFrame() if table is None else table.drop(columns=PLACE)

    @property
    def frame(self) -> Frame:
        """Every row, in the order of the cells and of their lengths."""
        if not self.tables:
            return pd.DataFrame(columns=[*_CELL, *MADE_BY])
        joined: Any = pd.concat(self.tables.values(), ignore_index=True)
        joined = joined.sort_values(by=PLACE, kind="stable", ignore_index=True)
        return joined.drop(columns=PLACE)

    @property
    def provenance(self) -> dict[str, Any]:
        """Everything that the numbers come from, each once: models (with the hash of their
        weights), versions, the options of the measurements, when they were made; and how much of
        what was asked is there."""
        sources = [source for cell in self.cells for source in cell.sources]
        times = sorted(str(source.get("time", "")) for source in sources)
        cells = [cell.keyed_cell.cell for cell in self.cells]
        options = dict.fromkeys((cell.measurement, cell.options) for cell in cells)

        def each(name: str) -> list[Any]:
            return distinct(source[name] for source in sources if source.get(name))

        return {
            "cells": {"asked": len(cells)} | {state: len(self.of(state)) for state in STATES},
            "models": each("model"),
            "versions": each("versions"),
            "checkpoints": each("checkpoint"),
            "code": each("code"),
            "measurements": [{"measurement": name, **json.loads(text)} for name, text in options],
            "edits": each("edits"),
            "time": [times[0], times[-1]] if times else [],
        }


def distinct(values: Iterable[Any]) -> list[Any]:
    """Each JSON value once, in the order in which they come."""
    return list({json.dumps(value, sort_keys=True): value for value in values}.values())


@checked_arguments(InputError)
def results(directory: str | Path, *, say: Callable[[str], None] = lambda text: None) -> Frame:
    """The tidy table of a sweep, complete or not: every row that was asked for and measured, in the
    order of the cells.

    The columns model, task, dtype, mitigation, seed, measurement and options (the measurement's
    own, as JSON) say to which cell a row belongs. checkpoint and code (hashes) say with what it was
    measured. A column that a measurement does not have is NA. `.attrs["ostools"]` has what the
    numbers come from: `SweepReading.provenance`. Raises `InputError` for a directory without a sweep. A
    file that is not as it was written is left out, and `say` is told of it.
    """
    reading = read(directory, say=say)
    table = reading.frame
    table.attrs["ostools"] = reading.provenance
    return table


def read(directory: str | Path, *, say: Callable[[str], None] = lambda text: None) -> SweepReading:
    """What a sweep's directory holds. Changes nothing there. Raises `InputError` for a directory
    without a sweep.
    """
    store = Store(require_sweep(directory), say)
    keyed_cells = store.planned_cells()
    files, failures = store.files({cell.base for cell in keyed_cells}), store.failures()
    parts: dict[str, list[pa.Table]] = defaultdict(list)
    cells = []
    for place, keyed_cell in enumerate(keyed_cells):
        wanted, lengths = set(keyed_cell.cell.lengths), set[int]()
        cell_files = files.get(keyed_cell.base, ())
        for file in cell_files:  # a length in two files is read once
            new_lengths = (file.lengths & wanted) - lengths
            parts[keyed_cell.cell.measurement].append(_rows_at(file, new_lengths, place))
            lengths |= file.lengths
        # A failure counts for what no file has.
        failed = [
            record
            for record in failures
            if record.base == keyed_cell.base and (wanted - lengths) & set(record.lengths)
        ]
        measured = tuple(sorted(wanted & lengths))
        sources = tuple(file.source for file in cell_files)
        cells.append(AskedCell(keyed_cell, measured, tuple(failed), sources))
    tables = {name: _joined(part, keyed_cells) for name, part in parts.items()}
    return SweepReading(store.directory, tuple(cells), tables)


def _rows_at(file: CellFile, lengths: set[int] | frozenset[int], place: int) -> pa.Table:
    """Return a file's rows of these lengths, with what they were measured with and their cell's
    place."""
    is_wanted = np.isin(file.table.column("length").to_numpy(), list(lengths))
    rows = file.table if is_wanted.all() else file.table.filter(is_wanted)
    for name in MADE_BY:
        hashes = pa.repeat(pa.scalar(file.source[name], pa.string()), len(rows))
        rows = rows.append_column(name, hashes)
    return rows.append_column(PLACE, pa.array(np.full(len(rows), place)))


def _joined(parts: Sequence[pa.Table], keyed_cells: Sequence[KeyedCell]) -> Frame:
    """Return the rows of many files as one table, in the order of the cells and of their lengths,
    under the names by which they were asked.

    Joined by pyarrow: thousands of small tables are slow to join in pandas. A column that a file
    lacks is missing there; of whole and other numbers in one column all become other ones.
    """
    # Of most files: one whose column is empty tells pandas of no type.
    pandas_metadata = Counter(part.schema.metadata[b"pandas"] for part in parts).most_common(1)
    try:
        joined = pa.concat_tables(parts, promote_options="permissive")
    except pa.ArrowException as error:  # such as words in one file and numbers in another
        raise InputError(
            f"expected files of one measurement with columns alike: {error}"
        ) from error
    table: Any = joined.replace_schema_metadata({b"pandas": pandas_metadata[0][0]}).to_pandas()
    table = table.sort_values(by=[PLACE, "length"], kind="stable", ignore_index=True)
    cells = [
        {**keyed_cell.cell.columns, "options": keyed_cell.cell.options}
        for keyed_cell in keyed_cells
    ]
    columns = pd.DataFrame(cells).iloc[table[PLACE].to_numpy()].reset_index(drop=True)
    made_by = table[list(MADE_BY)].astype("str")
    rows = table.drop(columns=[name for name in (*columns, *MADE_BY) if name in table])
    return pd.concat([columns, made_by, rows], axis="columns")


def require_sweep(directory: str | Path) -> Path:
    """The directory, if a sweep was run into it. Raises `InputError` otherwise."""
    target = checked_path(directory, "directory")
    if not (target / MANIFEST).is_file():
        raise InputError(
            f"{target}: expected the directory of a sweep, found no {MANIFEST} in it; give what --out was"
        )
    return target
