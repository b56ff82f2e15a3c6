"""What the charts are put together of: rows to be drawn, a panel's words, colours and dashes by name, log axes with zeros."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import altair as alt
import pandas as pd

from ostools.reporting.style import axes, theme
from ostools.results import Column, Frame

VALUE = alt.Tooltip("value:Q", format=".4g")
"""What the cursor tells of a number."""


def rows(data: Frame) -> Any:
    """A chart of these rows, to be marked and encoded, whatever the reader's Altair settings are.

    They lie there as one row of whole columns, numbers to six significant digits: a third of the size, and Altair checks its
    data against its schema cell by cell. A transform makes them rows again.
    """
    columns = {str(name): [_short(value) for value in data[name].tolist()] for name in data.columns}
    return alt.Chart(alt.InlineData(values=cast(Any, [columns]))).transform_flatten(list(columns))


def _short(value: object) -> object:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def without_nan(data: Frame) -> Any:
    """The rows with nothing in the place of every NaN, which a page's JSON does not have: a line breaks there."""
    return data.astype(object).where(data.notna(), None)


def layers(*marks: Any, **properties: Any) -> Any:
    """Marks over each other in one panel, with its width, height and title."""
    chart: Any = alt.layer(*marks)
    return chart.properties(**properties)


def heading(text: str | list[str], lines: Sequence[str] = (), above: int = 0, **options: Any) -> alt.TitleParams:
    """A panel's own title, smaller than the chart's, with `lines` below it.

    `above`: so many pixels higher, where the panel's marks go over its edge.
    """
    words = {"subtitle": list(lines), "subtitleFontSize": 10} if lines else {}
    looks = {"fontSize": 11, "fontWeight": "normal", "offset": 6 + above, "frame": "group"}
    return alt.TitleParams(text, **(looks | words | options))


def figure(rows: Sequence[Sequence[Any]], title: str, notes: str | Sequence[str] = (), **options: Any) -> Any:
    """Rows of panels as one chart with a title and notes below it.

    options: `spacing` between panels of a row, `between` rows; all others are of `resolve_scale`.
    """
    spacing, between = options.pop("spacing", 24), options.pop("between", 20)
    subtitle = [notes] if isinstance(notes, str) else list(notes)
    lines: list[Any] = [row[0] if len(row) == 1 else alt.hconcat(*row, spacing=spacing) for row in rows]
    if options:
        lines = [line.resolve_scale(**options) if len(row) > 1 else line for line, row in zip(lines, rows, strict=True)]
    chart = alt.vconcat(*lines, spacing=between, title=alt.TitleParams(title, subtitle=subtitle))
    return axes.themed(chart.resolve_scale(**options) if options else chart)


def in_rows(panels: Sequence[Any], columns: int) -> list[Sequence[Any]]:
    """The panels in rows of so many."""
    return [panels[start : start + columns] for start in range(0, len(panels), columns)]


def quiet(axis: Any) -> Any:
    """An axis without its words (an encoding, or title, scale and axis), for a panel whose neighbour has them."""
    if isinstance(axis, dict):
        return axis | {"title": None, "axis": _without_labels(axis["axis"])}
    copied = axis.copy()
    copied["title"], copied["axis"] = None, _without_labels(copied["axis"])
    return copied


def _without_labels(axis: alt.Axis) -> alt.Axis:
    copied = axis.copy()
    copied["labels"], copied["title"] = False, None
    return copied


def line_at(
    axis: str,
    field: str,
    value: float | int,
    *,
    colour: str = theme.INK,
    dash: Sequence[float | int] = (2, 3),
    width: float | int = 1.1,
    words: str = "",
    height: float | int | None = None,
    side: str = "left",
) -> list[Any]:
    """A rule across the panel at one value of the axis ("x" or "y"); of one at an x the words beside it, at this height."""
    base = rows(pd.DataFrame({field: [value], "words": [words]}))
    base = base.encode(**{axis: f"{field}:Q"}, color=alt.value(colour))
    marks = [base.mark_rule(strokeWidth=width, strokeDash=list(dash))]
    if words and height is not None:
        align, dx = ("right", -4) if side == "left" else ("left", 4)
        text = base.mark_text(align=align, dx=dx, baseline="middle", fontSize=10)
        marks.append(text.encode(y=alt.value(height), text="words:N"))
    return marks


def hue(field: str, names: Mapping[str, str] | Sequence[str], **legend: Any) -> alt.Color:
    """The colour of each name, by default the theme's, in a legend without a title unless it is given one."""
    colours = names if isinstance(names, Mapping) else dict(zip(names, theme.colours(names), strict=True))
    scale = alt.Scale(domain=list(colours), range=list(colours.values()))
    options: dict[str, Any] = {"title": None} | legend
    return alt.Color(f"{field}:N", scale=scale, legend=alt.Legend(**options))


def dashes(
    looks: Mapping[str, tuple[str, Sequence[float | int]]], present: Iterable[str], **legend: Any
) -> alt.StrokeDash:
    """The dash of each quantity that is present; `looks`: by quantity the legend's words and the dash."""
    present_names = set(present)
    names_present = [name for name in looks if name in present_names]
    words = axes.lookup(names_present, [looks[name][0] for name in names_present])
    scale = alt.Scale(domain=names_present, range=[looks[name][1] for name in names_present])
    return alt.StrokeDash(
        "quantity:N", scale=scale, legend=alt.Legend(title=None, columns=1, labelExpr=words, **legend)
    )


def log_y(values: Column, title: str, floor: float | None = None, field: str = "shown") -> alt.Y:
    """A log axis around the values; `floor`: where exact zeros are drawn, if there are any."""
    return alt.Y(f"{field}:Q", **axes.log_channel(values, title, floor))


def zeros(base: Any, floor: float | None) -> list[Any]:
    """The marks of exact zeros, where there are any."""
    return [] if floor is None else [axes.zero_marks(base)]
