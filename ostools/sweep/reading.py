"""Reads the directory of a sweep: what was asked, what of it is there, and its rows as one table.

Cost: one read of every file that was asked for, its bytes held against the hash in its name; about
a millisecond a file.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa

from ostools.ground import InputError, checked_arguments, checked_name, checked_path
from ostools.measure.position import joined_readings
from ostools.measure.prompts import parted
from ostools.measure.swept import BY_LENGTH, TEXT_TASK, the_one
from ostools.results import Frame, Provenance, Result
from ostools.sweep.cells import MEASUREMENTS, KeyedCell, Measurement
from ostools.sweep.store import MADE_BY, Store

Value = TypeVar("Value")
PLACE = "__cell__"
"""The column that says, while tables are put together, which cell a row is of."""
CONDITION = ("model", "dtype", "mitigation", "seed", "options", *MADE_BY)
"""The columns in which the rows of one result over texts are alike."""
_CELL = ("model", "task", "dtype", "mitigation", "seed", "measurement", "options")
STATES = ("measured", "failed", "missing")
_DIFFERENCE = "difference_at_probed_lengths"


@dataclass(frozen=True)
class AskedCell:
    """A cell that was asked for, and what there is of it: where it is measured, what its numbers
    come from (`source`: its `Provenance` as a mapping); where it failed, why (`failure`)."""

    keyed_cell: KeyedCell
    source: Mapping[str, Any] | None = None
    failure: str | None = None

    @property
    def state(self) -> str:
        """One of `STATES`."""
        if self.source is not None:
            return "measured"
        return "missing" if self.failure is None else "failed"


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
        joined: Frame = pd.concat(self.tables.values(), ignore_index=True)
        joined = joined.sort_values(by=PLACE, kind="stable", ignore_index=True)
        return joined.drop(columns=PLACE)

    @property
    def provenance(self) -> dict[str, Any]:
        """Everything that the numbers come from, each once: models (with the hash of their
        weights), versions, the options of the measurements, when they were made; and how much of
        what was asked is there."""
        sources = [cell.source for cell in self.cells if cell.source is not None]
        times = sorted(str(source.get("time", "")) for source in sources)
        cells = [cell.keyed_cell.cell for cell in self.cells]
        options = dict.fromkeys((cell.measurement, cell.options) for cell in cells)

        def values_of(name: str) -> list[object]:
            return distinct(source[name] for source in sources if source.get(name))

        return {
            "cells": {"asked": len(cells)} | {state: len(self.of(state)) for state in STATES},
            "models": values_of("model"),
            "versions": values_of("versions"),
            "checkpoints": values_of("checkpoint"),
            "code": values_of("code"),
            "measurements": [{"measurement": name, **json.loads(text)} for name, text in options],
            "edits": values_of("edits"),
            "time": [times[0], times[-1]] if times else [],
        }


def distinct(values: Iterable[Value]) -> list[Value]:
    """Each JSON value once, in the order in which they come."""
    return list({json.dumps(value, sort_keys=True): value for value in values}.values())


@checked_arguments(InputError)
def results(directory: str | Path, *, say: Callable[[str], None] = lambda text: None) -> Frame:
    """The tidy table of a sweep, complete or not: every row that was asked for and measured, in the
    order of the cells.

    The columns model, task (text: of a sweep's text, whose id is in the column text), dtype,
    mitigation, seed, measurement and options (the measurement's own, as JSON) say to which cell a
    row belongs. checkpoint and code (hashes) say with what it was measured. A column that a
    measurement does not have is NA. `.attrs["ostools"]` has what the numbers come from:
    `SweepReading.provenance`. Raises `InputError` for a directory without a sweep. A file that is
    not as it was written is left out, and `say` is told of it.
    """
    reading = read(directory, say=say)
    table = reading.frame
    table.attrs["ostools"] = reading.provenance
    return table


@checked_arguments(InputError)
def over_texts(directory: str | Path, measurement: str, **condition: str | int) -> Result:
    """Return the result of all texts of a sweep together, under one condition.

    condition: values of columns, such as length=64 or model="embedded", where the sweep has several
        (model, dtype, mitigation, seed, options; of `sensitivity` length too).

    Of `sensitivity` it is the result of several prompts, one a text: its `over_position()` has the
    mean over texts with its interval. Of `collapse` it is one in which each text is a seed.
    Raises `InputError` where no rows are left, and rows of several conditions.
    """
    what = MEASUREMENTS[checked_name("measurement", measurement, MEASUREMENTS)]
    reading = read(directory)
    rows = reading.tables.get(measurement, pd.DataFrame(columns=["task", PLACE]))
    # The answers of `evaluate` have a column `text` too, and are of no text of the sweep.
    rows = rows[rows["task"] == TEXT_TASK]
    for name, value in condition.items():
        rows = rows[rows[checked_name("column", name, rows.columns.drop(PLACE))] == value]
    if what.swept.of_texts is None or not len(rows):
        raise InputError(f"{directory}: expected {measurement} of texts, found no such rows")
    for name in (*CONDITION, *["length"] * (not what.takes_lengths)):
        the_one(rows, name)
    return result_of(reading, what, rows)


def result_of(reading: SweepReading, what: Measurement, rows: Frame) -> Result:
    """The result that some of the rows of a table of `reading` make, with the provenance of their
    cells; that of several texts where they are of texts."""

    def provenance(part: Frame) -> Provenance:
        places = part[PLACE].unique()
        sources = [source for place in places if (source := reading.cells[place].source)]
        return provenance_of(sources, set(part["length"].astype(str)))

    def result(part: Frame) -> Result:
        of_measurement = part.drop(columns=PLACE).reset_index(drop=True)
        return what.swept.read(of_measurement, provenance(part))

    if what.swept.of_texts is None or rows["task"].iloc[0] != TEXT_TASK:
        return result(rows)
    results = [result(part) for _, part in rows.groupby("text", sort=False)]
    return what.swept.of_texts(results, provenance(rows))


def provenance_of(
    sources: Sequence[Mapping[str, Any]], lengths: Collection[str] | None = None
) -> Provenance:
    """The provenance of the rows of these cells, or of some lengths of theirs: what all calls have
    alike, where their prompts are read, and the most that passes of their own differ by."""
    calls = [call for source in sources for call in _calls(source["parameters"], lengths)]
    parameters, _ = parted(calls)
    if all("read_at" in call for call in calls):
        parameters["read_at"] = joined_readings([call["read_at"] for call in calls])
    differences = [call.get(_DIFFERENCE, {}) for call in calls]
    if most := pd.DataFrame(differences, dtype=float).max().to_dict():
        parameters[_DIFFERENCE] = most
    first = sources[0]
    names = ("model", "versions", "time", "arithmetic")
    fields = {name: first[name] for name in names if name in first}
    return Provenance(**fields, edits=tuple(first["edits"]), parameters=parameters, token_ids=None)


def _calls(
    parameters: Mapping[str, Any], lengths: Collection[str] | None
) -> list[Mapping[str, Any]]:
    """The parameters of each call that a cell made."""
    if BY_LENGTH not in parameters:
        return [parameters]
    shared = {name: value for name, value in parameters.items() if name != BY_LENGTH}
    by_length = parameters[BY_LENGTH].items()
    return [shared | values for length, values in by_length if lengths is None or length in lengths]


def read(directory: str | Path, *, say: Callable[[str], None] = lambda text: None) -> SweepReading:
    """What a sweep's directory holds. Changes nothing there. Raises `InputError` for a directory
    without a sweep.
    """
    store = Store(checked_path(directory, "directory"), say)
    keyed_cells = store.planned_cells()
    files, failures = store.files({cell.key for cell in keyed_cells}), store.failures()
    parts: dict[str, list[pa.Table]] = defaultdict(list)
    cells = []
    for place, keyed_cell in enumerate(keyed_cells):
        file = files.get(keyed_cell.key)
        if file is not None:
            at = pa.array(np.full(len(file.table), place))
            parts[keyed_cell.cell.measurement].append(file.table.append_column(PLACE, at))
        source = None if file is None else file.source
        cells.append(AskedCell(keyed_cell, source, failures.get(keyed_cell.key)))
    tables = {name: _joined(part, keyed_cells) for name, part in parts.items()}
    return SweepReading(store.directory, tuple(cells), tables)


def _joined(parts: Sequence[pa.Table], keyed_cells: Sequence[KeyedCell]) -> Frame:
    """Return the rows of many files as one table, in the order of the cells and of their lengths,
    the columns of their cells in front.

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
    table: Frame = joined.replace_schema_metadata({b"pandas": pandas_metadata[0][0]}).to_pandas()
    table = table.sort_values(by=[PLACE, "length"], kind="stable", ignore_index=True)
    cells = [
        {**keyed_cell.cell.columns, "options": keyed_cell.cell.options}
        for keyed_cell in keyed_cells
    ]
    columns = pd.DataFrame(cells).iloc[table[PLACE].to_numpy()].reset_index(drop=True)
    columns = columns.dropna(axis="columns", how="all")  # of a table without texts
    made_by = table[list(MADE_BY)].astype("str")
    rows = table.drop(columns=[name for name in (*columns, *MADE_BY) if name in table])
    return pd.concat([columns, made_by, rows], axis="columns")
