"""Reads the directory of a sweep: what was asked, what of it is there, and its rows as one table.

Cost: one read of every file that was asked for, its bytes held against the hash in its name; about a millisecond a file.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from ostools.ground.arguments import checked_arguments
from ostools.ground.errors import InputError
from ostools.ground.files import TABLE_LIMIT, checked_path, read_bytes
from ostools.results import Frame
from ostools.sweep.cell_file import MADE_BY, PLACE, UNREADABLE, CellFile, why_broken
from ostools.sweep.cells import KeyedCell
from ostools.sweep.store import MANIFEST, Failure, Store

_CELL = ("model", "task", "dtype", "mitigation", "seed", "measurement", "options")
STATES = ("measured", "failed", "missing")
"""States of a cell: all of it is measured; what is not measured has failed; something is still to be measured."""


@dataclass(frozen=True)
class AskedCell:
    """A cell that was asked for, and what there is of it: the lengths that are `measured`, the records of the others that
    failed, and of each of its files what its numbers come from (`Provenance` as a mapping)."""

    keyed_cell: KeyedCell
    measured: tuple[int, ...]
    failures: tuple[Failure, ...] = ()
    sources: tuple[Mapping[str, Any], ...] = ()

    @property
    def missing(self) -> tuple[int, ...]:
        """The lengths that are neither measured nor recorded as failed."""
        known_lengths = {*self.measured, *(length for record in self.failures for length in record.lengths)}
        return tuple(length for length in self.keyed_cell.cell.lengths if length not in known_lengths)

    @property
    def state(self) -> str:
        """One of `STATES`."""
        if self.missing:
            return "missing"
        return "failed" if self.failures else "measured"


@dataclass(frozen=True)
class Reading:
    """A sweep as its directory holds it, complete or not: its cells in the order in which they were asked, and their rows by
    measurement, each with the place of its cell."""

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
        """Everything that the numbers come from, each once: models (with the hash of their weights), versions, the options of
        the measurements, when they were made; and how much of what was asked is there."""
        sources = [source for cell in self.cells for source in cell.sources]
        times = sorted(str(source.get("time", "")) for source in sources)
        options = {(cell.keyed_cell.cell.measurement, cell.keyed_cell.cell.options): None for cell in self.cells}
        return {
            "cells": {"asked": len(self.cells)} | {state: len(self.of(state)) for state in STATES},
            "models": distinct(source.get("model", {}) for source in sources),
            "versions": distinct(source.get("versions", {}) for source in sources),
            "checkpoints": distinct(checkpoint for source in sources if (checkpoint := source.get("checkpoint"))),
            "code": distinct(source.get("code", "") for source in sources),
            "measurements": [{"measurement": name, **json.loads(option_text)} for name, option_text in options],
            "edits": distinct(source.get("edits", []) for source in sources if source.get("edits")),
            "time": [times[0], times[-1]] if times else [],
        }


def distinct(values: Iterable[Any]) -> list[Any]:
    """Each JSON value once, in the order in which they come."""
    return list({json.dumps(value, sort_keys=True): value for value in values}.values())


@checked_arguments(InputError)
def results(directory: str | Path, *, say: Callable[[str], None] = lambda text: None) -> Frame:
    """The tidy table of a sweep, complete or not: every row that was asked for and measured, in the order of the cells.

    The columns model, task, dtype, mitigation, seed, measurement and options (the measurement's own, as JSON) say to which
    cell a row belongs. checkpoint and code (hashes) say with what it was measured. A column that a measurement does not have
    is NA. `.attrs["ostools"]` has what the numbers come from: `Reading.provenance`. Raises `InputError` for a directory
    without a sweep. A file that is not as it was written is left out, and `say` is told of it.
    """
    reading = read(directory, say=say)
    table = reading.frame
    table.attrs["ostools"] = reading.provenance
    return table


def read(directory: str | Path, *, say: Callable[[str], None] = lambda text: None) -> Reading:
    """What a sweep's directory holds. Changes nothing there. Raises `InputError` for a directory without a sweep."""
    store = Store(require_sweep(directory), say)
    keyed_cells = store.planned_cells()
    failures: dict[str, list[Failure]] = defaultdict(list)
    for record in store.failures():
        failures[record.base].append(record)
    files = store.files()
    with ThreadPoolExecutor() as threads:  # hashing and decoding let go of the interpreter
        loaded = list(
            threads.map(lambda keyed_cell: [_load(path) for path in files.get(keyed_cell.base, ())], keyed_cells)
        )
    tables, cells = _Tables(_schemas(keyed_cells, loaded)), []
    for place, (keyed_cell, loaded_files) in enumerate(zip(keyed_cells, loaded, strict=True)):
        lengths: set[int] = set()
        sources = []
        for file in loaded_files:
            if isinstance(file, str) or not tables.add(keyed_cell, place, file, lengths):
                say(file if isinstance(file, str) else _left_out(file.path, ValueError()))
            else:
                lengths |= file.lengths
                sources.append(file.source)
        planned_lengths = keyed_cell.cell.lengths
        # A failure counts for what no file has.
        failed = [
            record for record in failures[keyed_cell.base] if (set(planned_lengths) - lengths) & set(record.lengths)
        ]
        measured = tuple(length for length in planned_lengths if length in lengths)
        cells.append(AskedCell(keyed_cell, measured, tuple(failed), tuple(sources)))
    return Reading(store.directory, tuple(cells), tables.joined(keyed_cells))


def require_sweep(directory: str | Path) -> Path:
    """The directory, if a sweep was run into it, and its files are its own. Raises `InputError` otherwise."""
    target = checked_path(directory, "directory")
    if not (target / MANIFEST).is_file():
        raise InputError(f"{target}: expected the directory of a sweep, found no {MANIFEST} in it; give what --out was")
    Store(target).require_ours()
    return target


def _load(path: Path) -> CellFile | str:
    """A file of a cell, read once; or, where it is not as it was written, that in words."""
    try:
        return CellFile.of(path, read_bytes(path, TABLE_LIMIT))
    except UNREADABLE as error:
        return _left_out(path, error)


def _left_out(path: Path, error: Exception) -> str:
    return f"{path}: {why_broken(error)}; it is left out"


def _schemas(keyed_cells: Iterable[KeyedCell], loaded: Iterable[Iterable[CellFile | str]]) -> dict[str, Any]:
    """The columns of each measurement's table: those of most of its files, and of every other whose types go with them."""
    counts: dict[str, Counter[Any]] = defaultdict(Counter)
    for keyed_cell, files in zip(keyed_cells, loaded, strict=True):
        counts[keyed_cell.cell.measurement].update(file.table.schema for file in files if isinstance(file, CellFile))
    joined: dict[str, Any] = {}
    for kind, schemas in counts.items():
        for schema, _ in schemas.most_common():
            with suppress(pa.ArrowException):
                joined[kind] = pa.unify_schemas([joined.get(kind, schema), schema], promote_options="permissive")
    return joined


def _in_pandas(table: Any) -> Frame:
    """The table with the types that its files tell pandas of; without them where its values are not of these types."""
    try:
        return table.to_pandas()
    except UNREADABLE:
        return table.to_pandas(ignore_metadata=True)


class _Tables:
    """The rows of many files, put together a measurement at a time: thousands of small tables are slow to join in pandas."""

    def __init__(self, schemas: Mapping[str, Any]) -> None:
        self.parts: dict[str, list[Any]] = defaultdict(list)
        self.schemas = schemas
        self.known: set[bytes] = set()  # what files tell pandas of their columns, tried once each

    def add(self, keyed_cell: KeyedCell, place: int, file: CellFile, have: set[int]) -> bool:
        """Keep a file's rows of the lengths that were asked of the cell at `place` and are not there; whether they fit."""
        kind, table = keyed_cell.cell.measurement, file.table
        schema = self.schemas[kind]
        try:
            if (pandas_metadata := table.schema.metadata[b"pandas"]) not in self.known:
                if table.slice(0, 0).to_pandas().columns.tolist() != table.column_names:
                    return False  # it tells of an index
                self.known.add(pandas_metadata)
            if not table.schema.equals(schema):
                table = pa.concat_tables([schema.empty_table(), table], promote_options="permissive")
            if not table.schema.equals(schema):
                return False
            is_wanted = np.isin(
                table.column("length").to_numpy(), list((file.lengths & set(keyed_cell.cell.lengths)) - have)
            )
        except UNREADABLE:
            return False
        rows = table if is_wanted.all() else table.filter(is_wanted)
        for name in MADE_BY:
            rows = rows.append_column(name, pa.repeat(pa.scalar(file.source[name], pa.string()), len(rows)))
        self.parts[kind].append(rows.append_column(PLACE, pa.array(np.full(len(rows), place))))
        return True

    def joined(self, keyed_cells: list[KeyedCell]) -> dict[str, Frame]:
        """The rows by measurement, in the order of the cells and of their lengths, under the names that they were asked by."""
        columns, table_by_kind = (
            pd.DataFrame(
                [{**keyed_cell.cell.columns, "options": keyed_cell.cell.options} for keyed_cell in keyed_cells]
            ),
            {},
        )
        for kind, parts in self.parts.items():
            table: Any = _in_pandas(pa.concat_tables(parts).replace_schema_metadata(self.schemas[kind].metadata))
            table = table.sort_values(by=[PLACE, "length"], kind="stable", ignore_index=True)
            places = table[PLACE].to_numpy()
            for index, name in enumerate(columns):
                values = columns[name].array.take(places)
                if name in table:
                    table[name] = values
                else:
                    table.insert(index, name, values)
            for index, name in enumerate(MADE_BY, len(columns.columns)):
                table.insert(index, name, table.pop(name).astype("str"))
            table.attrs = {}
            table_by_kind[kind] = table
        return table_by_kind
