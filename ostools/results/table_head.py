"""The part of a result's table that a terminal shows: which rows, which columns, in which order.

How tables, their parts and charts are called in annotations.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import pandas as pd

if TYPE_CHECKING:
    import altair as alt

    # pandas' own annotations call every selection a DataFrame, a Series or an array, so that a type
    # checker objects to each step. It sees `Any` here; at run time (and under beartype in the
    # tests) the names are what they say.
    Frame: TypeAlias = Any
    Column: TypeAlias = Any
    Row: TypeAlias = Any
    Chart: TypeAlias = alt.TopLevelMixin
else:
    Frame, Column, Row = pd.DataFrame, pd.Series, pd.Series
    Chart = object  # Altair is imported when something is drawn
Looks: TypeAlias = dict[str, Any]
"""Properties of an Altair object by name, and parts of a specification: what Altair itself types as
anything.
"""


_LENGTHS = 16
"""Lengths of a curve that are shown."""
_GREATEST = 10
"""Rows that are shown of a table that is ordered by size."""


@dataclass(frozen=True)
class TableHead:
    """A table of a result, as a terminal shows it. A class of results names its own: `class
    Evaluation(Result, tables=(...))`.

    table: an attribute of the result, or a method without arguments.
    columns: names with blanks between them, of which those that the table lacks are left out; none:
        all.
    across: the columns whose values stand side by side.
    greatest: the column by whose size the rows are ordered.
    groups: one row a group, with the number of its rows and the means of `columns`.
    title: an attribute of the result that says what the table holds; none: the names of class and
        table.
    """

    table: str = "frame"
    columns: str = ""
    across: str = ""
    greatest: str = ""
    groups: str = ""
    title: str = ""

    def of(self, result: object) -> tuple[str, Frame]:
        """Title and rows of the table, of this result."""
        table: Frame = getattr(result, self.table)
        table, title = table() if callable(table) else table, self._title(result)
        if "length" in table.columns:
            table, title = _some_lengths(table, title)
        if self.groups:
            table = self._grouped(table)
        if self.greatest:
            ordered = table.sort_values(self.greatest, ascending=False, kind="stable", key=abs)
            table, title = ordered.head(_GREATEST), f"{title}, by {self.greatest}"
        if self.across:
            table = self._side_by_side(table)
        elif self.columns and not self.groups:
            table = table[self._present(table)]
        return title, table

    def _title(self, result: object) -> str:
        if self.title:
            return getattr(result, self.title)
        words = re.sub(r"(?<=[a-z])(?=[A-Z0-9])", " ", type(result).__name__).capitalize()
        return words if self.table == "frame" else f"{words}, {self.table.replace('_', ' ')}"

    def _present(self, table: Frame) -> list[str]:
        return [name for name in self.columns.split() if name in table.columns]

    def _grouped(self, table: Frame) -> Frame:
        means, groups = self._present(table), self.groups.split()
        numbers = table.assign(**{name: table[name].astype("Float64") for name in means})
        grouped = numbers.groupby(groups, sort=False)
        return grouped.agg(
            rows=(groups[0], "size"), **{name: (name, "mean") for name in means}
        ).reset_index()

    def _side_by_side(self, table: Frame) -> Frame:
        """The table with a column for each number and each value of `across`."""
        names = self._present(table)
        keys = [name for name in names if table[name].dtype.kind != "f"]
        numbers: list[str] = []
        for name in names:
            # Exact norms have no interval: both of its ends repeat the norm.
            repeats = numbers and table[name].equals(table[numbers[-1]])
            if name not in keys and table[name].notna().any() and not repeats:
                numbers.append(name)
        # A key that is the same in all rows says nothing.
        index = [name for name in keys if table[name].nunique() > 1] or keys[-1:]
        wide = table.pivot_table(
            index=index,
            columns=self.across.split(),
            values=numbers,
            aggfunc="first",
            sort=False,
            dropna=False,
        )
        wide.columns = [" ".join(map(str, (*name[1:], name[0]))) for name in wide]
        return wide.dropna(how="all").reset_index()


def _some_lengths(table: Frame, title: str) -> tuple[Frame, str]:
    """Rows of at most `_LENGTHS` lengths, evenly spread, the first and the last among them."""
    lengths = sorted(set(table["length"]))
    last, most = len(lengths) - 1, _LENGTHS - 1
    sample = {lengths[round(index * last / most)] for index in range(_LENGTHS)}
    if len(sample) == len(lengths):
        return table, title
    return table[table["length"].isin(sample)], f"{title}, {len(sample)} of {len(lengths)} lengths"
