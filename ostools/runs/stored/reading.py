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

from hooks.errors import checked_arguments
from ostools.ground.errors import InputError
from ostools.ground.files.reading import TABLE_LIMIT, read_bytes
from ostools.results import Frame
from ostools.runs.stored.store import MANIFEST, CellFile, Failure, Store, Wanted, why_broken
from ostools.runs.stored.table import UNREADABLE

_PLACE = "__cell__"
"""The column that says, while tables are put together, which cell a row is of."""
MADE_BY = ("checkpoint", "code")
"""The columns that say what a row was measured with: hashes of the model's files and of the code; "" where a file has none."""
_CELL = ("model", "task", "dtype", "mitigation", "seed", "measurement", "options")
STATES = ("measured", "failed", "missing")
"""States of a cell: all of it is measured; what is not measured has failed; something is still to be measured."""


@dataclass(frozen=True)
class AskedCell:
    """A cell that was asked for, and what there is of it: the lengths that are `measured`, the records of the others that
    failed, and of each of its files what its numbers come from (`Provenance` as a mapping)."""

    wanted: Wanted
    measured: tuple[int, ...]
    failures: tuple[Failure, ...] = ()
    sources: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def of(
        cls, entry: Wanted, lengths: Iterable[int], failures: Iterable[Failure], sources: Iterable[Any] = ()
    ) -> AskedCell:
        """What there is of a cell, with files of these lengths: a failure counts for what no file has."""
        have = set(lengths)
        measured = tuple(length for length in entry.cell.lengths if length in have)
        remaining = set(entry.cell.lengths) - have
        return cls(
            entry, measured, tuple(record for record in failures if remaining & set(record.lengths)), tuple(sources)
        )

    @property
    def missing(self) -> tuple[int, ...]:
        """The lengths that are neither measured nor recorded as failed."""
        known_names = {*self.measured, *(length for record in self.failures for length in record.lengths)}
        return tuple(length for length in self.wanted.cell.lengths if length not in known_names)

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
        entries = self.tables.get(measurement)
        return pd.DataFrame() if entries is None else entries.drop(columns=_PLACE)

    @property
    def frame(self) -> Frame:
        """Every row, in the order of the cells and of their lengths."""
        if not self.tables:
            return pd.DataFrame(columns=[*_CELL, *MADE_BY])
        joined: Any = pd.concat(self.tables.values(), ignore_index=True)
        joined = joined.sort_values(by=_PLACE, kind="stable", ignore_index=True)
        return joined.drop(columns=_PLACE)

    @property
    def provenance(self) -> dict[str, Any]:
        """Everything that the numbers come from, each once: models (with the hash of their weights), versions, the options of
        the measurements, when they were made; and how much of what was asked is there."""
        sources = [source for cell in self.cells for source in cell.sources]
        times = sorted(str(source.get("time", "")) for source in sources)
        options = {(cell.wanted.cell.measurement, cell.wanted.cell.options): None for cell in self.cells}
        return {
            "cells": {"asked": len(self.cells)} | {state: len(self.of(state)) for state in STATES},
            "models": distinct(source.get("model", {}) for source in sources),
            "versions": distinct(source.get("versions", {}) for source in sources),
            "checkpoints": distinct(messages for source in sources if (messages := source.get("checkpoint"))),
            "code": distinct(source.get("code", "") for source in sources),
            "measurements": [{"measurement": name, **json.loads(spec)} for name, spec in options],
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
    entries = read(directory, say=say)
    table = entries.frame
    table.attrs["ostools"] = entries.provenance
    return table


def read(directory: str | Path, *, say: Callable[[str], None] = lambda text: None) -> Reading:
    """What a sweep's directory holds. Changes nothing there. Raises `InputError` for a directory without a sweep."""
    store = Store(require_sweep(directory), say)
    sweep_part = store.asked()
    failures = by_base(store.failures())
    files = store.files()
    with ThreadPoolExecutor() as threads:  # hashing and decoding let go of the interpreter
        loaded = list(threads.map(lambda entry: [_load(path) for path in files.get(entry.base, ())], sweep_part))
    tables, cells = _Tables(_schemas(sweep_part, loaded)), []
    for place, (one, entries) in enumerate(zip(sweep_part, loaded, strict=True)):
        lengths: set[int] = set()
        sources = []
        for file in entries:
            if isinstance(file, str) or not tables.add(one, place, file, lengths):
                say(file if isinstance(file, str) else _left_out(file.path, ValueError()))
            else:
                lengths |= file.lengths
                sources.append(file.source)
        cells.append(AskedCell.of(one, lengths, failures.get(one.base, ()), sources))
    return Reading(store.directory, tuple(cells), tables.joined(sweep_part))


def require_sweep(directory: str | Path) -> Path:
    """The directory, if a sweep was run into it, and its files are its own. Raises `InputError` otherwise."""
    target = Path(directory)
    if not (target / MANIFEST).is_file():
        raise InputError(f"{target}: expected the directory of a sweep, found no {MANIFEST} in it; give what --out was")
    Store(target).require_ours()
    return target


def by_base(failures: Iterable[Failure]) -> dict[str, list[Failure]]:
    entries: dict[str, list[Failure]] = defaultdict(list)
    for record in failures:
        entries[record.base].append(record)
    return entries


@dataclass(frozen=True)
class _Loaded(CellFile):
    """A file of a cell, and what its numbers come from."""

    source: Mapping[str, Any]


def _load(path: Path) -> _Loaded | str:
    """A file of a cell, read once; or, where it is not as it was written, that in words."""
    try:
        entries = CellFile.of(path, read_bytes(path, TABLE_LIMIT))
        table = entries.table.replace_schema_metadata({b"pandas": entries.table.schema.metadata[b"pandas"]})
        if {_PLACE, *MADE_BY} & set(table.column_names):
            raise ValueError("a column that is ours to add")
        return _Loaded(path, entries.lengths, table, entries.kept, _source(entries.kept["provenance"]))
    except UNREADABLE as error:
        return _left_out(path, error)


def _left_out(path: Path, error: Exception) -> str:
    return f"{path}: {why_broken(error)}; it is left out"


def _source(messages: Any) -> dict[str, Any]:
    """What a file says its numbers come from, as `Provenance` has it. Raises TypeError or KeyError for anything else."""
    forms = {"model": dict, "versions": dict, "parameters": dict, "edits": list, "time": str}
    spec = {**dict.fromkeys(MADE_BY, ""), **messages}
    for name, form in (forms | dict.fromkeys(MADE_BY, str)).items():
        if not isinstance(spec[name], form):
            raise TypeError(f"{name}: expected a {form.__name__}, found a {type(spec[name]).__name__}")
    json.dumps(spec, ensure_ascii=False, allow_nan=False).encode()  # half of a character, or NaN, can be in no report
    return spec


def _schemas(sweep_part: Iterable[Wanted], loaded: Iterable[Iterable[_Loaded | str]]) -> dict[str, Any]:
    """The columns of each measurement's table: those of most of its files, and of every other whose types go with them."""
    counts: dict[str, Counter[Any]] = defaultdict(Counter)
    for entry, entries in zip(sweep_part, loaded, strict=True):
        counts[entry.cell.measurement].update(file.table.schema for file in entries if isinstance(file, _Loaded))
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

    def add(self, entry: Wanted, place: int, file: _Loaded, have: set[int]) -> bool:
        """Keep a file's rows of the lengths that were asked of the cell at `place` and are not there; whether they fit."""
        kind, table = entry.cell.measurement, file.table
        schema = self.schemas[kind]
        try:
            if (messages := table.schema.metadata[b"pandas"]) not in self.known:
                if table.slice(0, 0).to_pandas().columns.tolist() != table.column_names:
                    return False  # it tells of an index
                self.known.add(messages)
            if not table.schema.equals(schema):
                table = pa.concat_tables([schema.empty_table(), table], promote_options="permissive")
            if not table.schema.equals(schema):
                return False
            selected = np.isin(table.column("length").to_numpy(), list((file.lengths & set(entry.cell.lengths)) - have))
        except UNREADABLE:
            return False
        rows = table if selected.all() else table.filter(selected)
        for name in MADE_BY:
            rows = rows.append_column(name, pa.repeat(pa.scalar(file.source[name], pa.string()), len(rows)))
        self.parts[kind].append(rows.append_column(_PLACE, pa.array(np.full(len(rows), place))))
        return True

    def joined(self, sweep_part: list[Wanted]) -> dict[str, Frame]:
        """The rows by measurement, in the order of the cells and of their lengths, under the names that they were asked by."""
        columns, entries = (
            pd.DataFrame([{**entry.cell.columns, "options": entry.cell.options} for entry in sweep_part]),
            {},
        )
        for kind, parts in self.parts.items():
            table: Any = _in_pandas(pa.concat_tables(parts).replace_schema_metadata(self.schemas[kind].metadata))
            table = table.sort_values(by=[_PLACE, "length"], kind="stable", ignore_index=True)
            places = table[_PLACE].to_numpy()
            for index, name in enumerate(columns):
                values = columns[name].array.take(places)
                if name in table:
                    table[name] = values
                else:
                    table.insert(index, name, values)
            for index, name in enumerate(MADE_BY, len(columns.columns)):
                table.insert(index, name, table.pop(name).astype("str"))
            table.attrs = {}
            entries[kind] = table
        return entries
