"""How the cells of a measurement are shown: a section with a part for each model, task and options."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ostools.ground.errors import InputError
from ostools.ground.words import short_name
from ostools.reporting.look.theme import inert
from ostools.reporting.page.section import Part, Section
from ostools.results import Frame, Provenance
from ostools.runs.measurements.record import Measurement
from ostools.runs.stored.reading import MADE_BY, Reading
from ostools.runs.stored.table import UNREADABLE

_PANELS = 8
"""How many panels a figure has at most; tables have all."""


@dataclass(frozen=True)
class Here:
    """What one part shows: `rows`, among `every` row of their measurement; `name` is the figure's."""

    found: Reading
    rows: Frame
    every: Frame
    name: str

    def one(self, column: str) -> str:
        """The value of a column in which all rows are alike."""
        return str(self.rows[column].iloc[0])

    @property
    def model(self) -> str:
        return short_name({"name": self.one("model")})

    @property
    def task(self) -> str:
        return self.one("task")

    @property
    def made(self) -> str:
        """The checkpoint and the code of these rows, where the rows of their model have several."""
        of_model = self.every[self.every["model"] == self.one("model")]
        several = [name for name in MADE_BY if of_model[name].nunique() > 1]
        return "".join(f", {name} {self.one(name)[:12] or 'unknown'}" for name in several)

    @property
    def title(self) -> str:
        """The task and the model; the options of the measurement too where it was asked with several."""
        options = f", {self.one('options')}" if self.every["options"].nunique() > 1 else ""
        return f"{self.task}, {self.one('model')}{options}{self.made}"


@dataclass(frozen=True)
class CellsSection:
    """The section of a measurement: `part` shows the rows that have the same model, task, options and `by`.

    `name` is its anchor, `figures` what its figures are called, `lead` says what it shows.
    """

    measurement: Measurement[Any]
    name: str
    title: str
    nav: str
    lead: str
    figures: str
    part: Callable[[Here], Part]
    by: Sequence[str] = ()

    def of(self, found: Reading) -> Section | None:
        """None where nothing was measured."""
        rows = found.rows(self.measurement.name)
        grouped = groups(rows, "model", "task", *self.by, "options", *MADE_BY)
        parts = [self._drawn(Here(found, here, rows, f"{self.figures}-{i}")) for i, (_, here) in enumerate(grouped)]
        return Section(self.name, self.title, self.nav, self.lead, parts) if parts else None

    def _drawn(self, here: Here) -> Part:
        """The part; where the stored rows are not what it can be made of, that and why."""
        try:
            return self.part(here)
        except UNREADABLE as error:
            why = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
            return Part(title=here.title, findings=[f"This could not be drawn from what is stored: {why}"])


def groups(rows: Frame, *names: str) -> Iterator[tuple[tuple[str, ...], Frame]]:
    """The rows by the values of these columns, in the order in which they come."""
    if len(rows):
        for key, here in rows.groupby(list(names), sort=False):
            yield tuple(map(str, key)), here.reset_index(drop=True)


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
    told = first["model"], parameters, None, first["versions"], tuple(first["edits"]), str(first["time"])
    return Provenance(*told, first.get("arithmetic", {}))


def panels(rows: Frame) -> list[str]:
    """The condition of each row, dtype and mitigation in words."""
    pairs = zip(rows["dtype"].astype(str), rows["mitigation"].astype(str), strict=True)
    return [dtype if name == "none" else f"{dtype}, {inert(name)}" for dtype, name in pairs]


def few_panels(rows: Frame, tables: str) -> tuple[Frame, list[str]]:
    """The rows of the first panels; and, where panels are left out, that in words."""
    names = list(dict.fromkeys(rows["panel"]))
    left_out = (
        [f"Drawn are {_PANELS} of the {len(names)} conditions. The {tables} all of them."]
        if len(names) > _PANELS
        else []
    )
    return rows[rows["panel"].isin(names[:_PANELS])], left_out


def finite(rows: Frame) -> tuple[Frame, list[str]]:
    """The rows whose values are finite; and, where some are not, that in words."""
    known = np.isfinite(rows["value"].astype(float))
    bad = int((~known).sum())
    left_out = f"{bad} of {len(rows)} values are not finite. The figure is left out. The tables have the other values."
    return rows[known], [left_out] if bad else []
