"""The rows of a sweep, grouped into results: those alike in model, task, options and code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from ostools.ground.errors import InputError
from ostools.reporting.style.theme import inert
from ostools.results import Frame, Provenance
from ostools.sweep.reading import MADE_BY, SweepReading


@dataclass(frozen=True)
class Cells:
    """Rows that make one result, among `all_rows` of their measurement.

    They are alike in model, task, options, checkpoint, code and the columns of `by`.
    """

    sweep: SweepReading
    rows: Frame
    all_rows: Frame
    by: tuple[str, ...]

    def value(self, column: str) -> str:
        """The value of a column in which all rows are alike."""
        return str(self.rows[column].iloc[0])

    @property
    def provenance(self) -> Provenance:
        """The provenance of the rows."""
        return provenance_of(self.sweep, self.rows, *self._key)

    @property
    def _key(self) -> tuple[str, ...]:
        """The columns that tell cells apart; a cell has several lengths."""
        return ("model", "task", *(name for name in self.by if name != "length"))

    @property
    def made_by(self) -> str:
        """The checkpoint and code of these rows, where the rows of their model have several."""
        rows = self.all_rows[self.all_rows["model"] == self.value("model")]
        names = [name for name in MADE_BY if rows[name].nunique() > 1]
        return "".join(f", {name} {self.value(name)[:12] or 'unknown'}" for name in names)

    @property
    def title(self) -> str:
        """Task and model, and what tells these rows from others of their measurement."""
        differ = [name for name in (*self.by, "options") if self.all_rows[name].nunique() > 1]
        words = [self.value("task"), self.value("model")]
        words += [
            f"{name} {self.value(name)}" for name in ("dtype", "seed", "length") if name in differ
        ]
        if "mitigation" in self.by and self.value("mitigation") != "none":
            words.append(f"under {inert(self.value('mitigation'))}")
        words += [self.value("options")] if "options" in differ else []
        return ", ".join(words) + self.made_by

    @property
    def is_longest(self) -> bool:
        """Whether this is the longest prompt of its condition, with the least seed of those."""
        names = [name for name in (*self._key, "options", *MADE_BY) if name != "seed"]
        same = (self.all_rows[names].astype(str) == [self.value(name) for name in names]).all(
            axis=1
        )
        rows = self.all_rows.loc[same, ["length", "seed"]].sort_values(
            ["length", "seed"], ascending=[False, True]
        )
        return [self.value("length"), self.value("seed")] == list(map(str, rows.iloc[0]))


def cells_of(sweep: SweepReading, measurement: str, by: tuple[str, ...]) -> Iterator[Cells]:
    """The rows of a measurement, one `Cells` a result, in their order."""
    all_rows = sweep.rows(measurement)
    for _, rows in groups(all_rows, "model", "task", *by, "options", *MADE_BY):
        yield Cells(sweep, rows, all_rows, by)


def groups(rows: Frame, *names: str) -> Iterator[tuple[tuple[str, ...], Frame]]:
    """The rows by the values of these columns, in their order."""
    if len(rows):
        for key, group in rows.groupby(list(names), sort=False):
            yield tuple(map(str, key)), group.reset_index(drop=True)


def require_finite(rows: Frame, columns: Sequence[str]) -> None:
    """Raises `InputError` where a value of these columns is not finite."""
    finite = np.isfinite(rows[list(columns)].astype(float)).all(axis=1)
    if not finite.all():
        raise InputError(f"{int((~finite).sum())} of {len(rows)} values are not finite")


def sources_of(sweep: SweepReading, rows: Frame, *names: str) -> list[Mapping[str, Any]]:
    """The records of the files that hold these rows, by these columns, options and checkpoint."""
    values = {
        name: str(rows[name].iloc[0]) for name in ("measurement", "options", *names, *MADE_BY)
    }
    sources = []
    for cell in sweep.cells:
        columns = cell.keyed_cell.cell.columns | {"options": cell.keyed_cell.cell.options}
        for source in cell.sources:
            record = {**source, **columns}
            if all(str(record[name]) == value for name, value in values.items()):
                sources.append(source)
    return sources


def provenance_of(sweep: SweepReading, rows: Frame, *names: str) -> Provenance:
    """The provenance of the first of these rows' files, with what they do not share taken together."""
    sources = sources_of(sweep, rows, *names)
    first, of_each = sources[0], [source["parameters"] for source in sources]
    parameters = dict(first["parameters"])
    if "rewritten" in parameters:
        parameters["rewritten"] = any(values["rewritten"] for values in of_each)
    if "difference_at_probed_lengths" in parameters:
        differences = [values["difference_at_probed_lengths"] for values in of_each]
        largest = {
            name: max(shares.get(name, 0.0) for shares in differences)
            for name in chain(*differences)
        }
        parameters["difference_at_probed_lengths"] = largest
    origin = (
        first["model"],
        parameters,
        None,
        first["versions"],
        tuple(first["edits"]),
        str(first["time"]),
    )
    return Provenance(*origin, first.get("arithmetic", {}))
