"""The rows of a sweep, grouped into results: those that are alike in model, task, options and code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ostools.ground.errors import InputError
from ostools.reporting.style.theme import inert
from ostools.results import Frame, Provenance
from ostools.runs.measurements.record import Measurement
from ostools.runs.reading import MADE_BY, Reading


@dataclass(frozen=True)
class Cells:
    """Rows that make one result, among `every` row of their measurement.

    They are alike in model, task, options, checkpoint and code, and in the columns of `by`.
    """

    found: Reading
    rows: Frame
    every: Frame
    by: tuple[str, ...]

    def value(self, column: str) -> str:
        """The value of a column in which all rows are alike."""
        return str(self.rows[column].iloc[0])

    @property
    def provenance(self) -> Provenance:
        """What the rows come from."""
        return provenance_of(self.found, self.rows, *self.key)

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that say of which cells the rows are; a cell has several lengths."""
        return ("model", "task", *(name for name in self.by if name != "length"))

    @property
    def made(self) -> str:
        """The checkpoint and the code of these rows, where the rows of their model have several."""
        of_model = self.every[self.every["model"] == self.value("model")]
        several = [name for name in MADE_BY if of_model[name].nunique() > 1]
        return "".join(f", {name} {self.value(name)[:12] or 'unknown'}" for name in several)

    @property
    def title(self) -> str:
        """The task and the model; what else tells these rows from the others of their measurement."""
        names = [name for name in ("dtype", "seed", "length") if name in self.by]
        several = [name for name in names if self.every[name].nunique() > 1]
        words = [self.value("task"), self.value("model"), *(f"{name} {self.value(name)}" for name in several)]
        if "mitigation" in self.by and self.value("mitigation") != "none":
            words.append(f"under {inert(self.value('mitigation'))}")
        words += [self.value("options")] if self.every["options"].nunique() > 1 else []
        return ", ".join(words) + self.made

    @property
    def is_longest(self) -> bool:
        """Whether this is the longest prompt of its condition, and of those the one of the least seed."""
        names = [name for name in (*self.key, "options", *MADE_BY) if name != "seed"]
        alike = rows_where(self.every, names, [self.value(name) for name in names])
        longest = alike[alike["length"] == alike["length"].max()]
        own = (int(self.value("length")), int(self.value("seed")))
        return own == (int(longest["length"].iloc[0]), int(longest["seed"].min()))


def cells_of(found: Reading, measurement: Measurement[Any], by: tuple[str, ...]) -> Iterator[Cells]:
    """The rows of a measurement, one `Cells` a result, in the order in which they come."""
    every = found.rows(measurement.name)
    for _, rows in groups(every, "model", "task", *by, "options", *MADE_BY):
        yield Cells(found, rows, every, by)


def groups(rows: Frame, *names: str) -> Iterator[tuple[tuple[str, ...], Frame]]:
    """The rows by the values of these columns, in the order in which they come."""
    if len(rows):
        for key, here in rows.groupby(list(names), sort=False):
            yield tuple(map(str, key)), here.reset_index(drop=True)


def rows_where(rows: Frame, names: Sequence[str], values: Sequence[str]) -> Frame:
    """The rows with these values, as text, in the columns of these names."""
    same = np.full(len(rows), True)
    for name, value in zip(names, values, strict=True):
        same &= (rows[name].astype(str) == value).to_numpy()
    return rows[same].reset_index(drop=True)


def require_finite(rows: Frame, columns: Sequence[str]) -> None:
    """Raises `InputError` where a value of these columns is not finite."""
    known = np.isfinite(rows[list(columns)].astype(float)).all(axis=1)
    if not known.all():
        raise InputError(f"{int((~known).sum())} of {len(rows)} values are not finite")


def sources_of(found: Reading, rows: Frame, *names: str) -> list[Mapping[str, Any]]:
    """What the files say that hold these rows: those of cells with their values of these columns, options and checkpoint."""
    names = ("measurement", "options", *names, *MADE_BY)
    values = {name: str(rows[name].iloc[0]) for name in names}
    cells = [(cell.keyed_cell.cell, source) for cell in found.cells for source in cell.sources]
    return [
        source
        for cell, source in cells
        if all(
            str({**source, **cell.columns, "options": cell.options}[name]) == value for name, value in values.items()
        )
    ]


def provenance_of(found: Reading, rows: Frame, *names: str) -> Provenance:
    """What these rows come from: of the first of their files, with what they do not share taken together."""
    sources = sources_of(found, rows, *names)
    first = sources[0]
    parameters = dict(first["parameters"])
    if "rewritten" in parameters:
        parameters["rewritten"] = any(source["parameters"]["rewritten"] for source in sources)
    if "difference_at_probed_lengths" in parameters:
        differences: dict[str, float] = {}
        for source in sources:
            for name, value in source["parameters"]["difference_at_probed_lengths"].items():
                differences[name] = max(value, differences.get(name, 0.0))
        parameters["difference_at_probed_lengths"] = differences
        parts = [source["parameters"]["lengths_in_passes_of_their_own"] for source in sources]
        dtypes = {name: None for part in parts for name in part}
        parameters["lengths_in_passes_of_their_own"] = {
            name: sorted({length for part in parts for length in part.get(name, [])}) for name in dtypes
        }
    ids, edits = None, tuple(first["edits"])
    return Provenance(
        *(first["model"], parameters, ids, first["versions"], edits, str(first["time"])),
        first.get("arithmetic", {}),
    )
