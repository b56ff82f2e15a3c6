"""The rows of a sweep, grouped into results: those alike in model, task, options and code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from ostools.reporting.style.theme import inert
from ostools.results import Frame, Provenance
from ostools.sweep.cell_file import MADE_BY
from ostools.sweep.reading import SweepReading, provenance_of


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
    def title(self) -> str:
        """Task and model, and what tells these rows from others of their measurement."""
        differ = [name for name in (*self.by, "options") if self.all_rows[name].nunique() > 1]
        told = [
            f"{name} {self.value(name)}" for name in ("dtype", "seed", "length") if name in differ
        ]
        words = [self.value("task"), self.value("model"), *told]
        if "mitigation" in self.by and self.value("mitigation") != "none":
            words.append(f"under {inert(self.value('mitigation'))}")
        words += [self.value("options")] if "options" in differ else []
        # The checkpoint and code, where the rows of their model have several.
        of_model = self.all_rows[self.all_rows["model"] == self.value("model")]
        names = [name for name in MADE_BY if of_model[name].nunique() > 1]
        return ", ".join(
            [*words, *(f"{name} {self.value(name)[:12] or 'unknown'}" for name in names)]
        )

    @property
    def is_longest(self) -> bool:
        """Whether this is the longest prompt of its condition, with the least seed of those."""
        names = ["model", "task", *self.by, "options", *MADE_BY]
        names = [name for name in names if name not in ("length", "seed")]
        same = (self.all_rows[names].astype(str) == [self.value(name) for name in names]).all(
            axis=1
        )
        longest = self.all_rows[same].sort_values(["length", "seed"], ascending=[False, True])
        first = longest[["length", "seed"]].iloc[0]
        return [self.value("length"), self.value("seed")] == [*map(str, first)]

    @property
    def provenance(self) -> Provenance:
        """The provenance of the first of these rows' files, with what they do not share taken
        together.
        """
        sources = self._sources()
        first, of_each = sources[0], [source["parameters"] for source in sources]
        parameters = dict(first["parameters"])
        if "rewritten" in parameters:
            parameters["rewritten"] = any(values["rewritten"] for values in of_each)
        if "difference_at_probed_lengths" in parameters:
            shares = [values["difference_at_probed_lengths"] for values in of_each]
            parameters["difference_at_probed_lengths"] = {
                name: max(share.get(name, 0.0) for share in shares) for name in chain(*shares)
            }
        return provenance_of(first, **parameters)

    def _sources(self) -> list[Mapping[str, Any]]:
        """The records of the files that hold these rows; a cell has several lengths."""
        names = ("measurement", "model", "task", *self.by, "options", *MADE_BY)
        values = {name: self.value(name) for name in names if name != "length"}
        sources = []
        for cell in self.sweep.cells:
            columns = cell.keyed_cell.cell.columns | {"options": cell.keyed_cell.cell.options}
            if cell.source is not None:
                record = {**cell.source, **columns}
                if all(str(record[name]) == value for name, value in values.items()):
                    sources.append(cell.source)
        return sources


def cells_of(sweep: SweepReading, measurement: str, by: tuple[str, ...]) -> Iterator[Cells]:
    """The rows of a measurement, one `Cells` a result, in their order."""
    all_rows = sweep.rows(measurement)
    if len(all_rows):
        groups = all_rows.groupby(["model", "task", *by, "options", *MADE_BY], sort=False)
        for _, rows in groups:
            yield Cells(sweep, rows.reset_index(drop=True), all_rows, by)
