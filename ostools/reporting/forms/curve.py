"""Form: a curve with its floor. Values against a number, a colour a series, a dash a quantity, bands between two columns.

Standard columns of the rows: `value`; `series` (words of the legend of colours); `quantity` (key of the legend of dashes);
`run` (what else keeps lines apart); `shown` and `zero` where `fitted` has put the values on a log axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import pandas as pd

from ostools.reporting.look import axes, draw
from ostools.results import Frame

Band = tuple[str, str, float | int]
"""Two columns, and the opacity of the area between them."""
BAND: Band = ("low", "high", 0.2)


def fitted(
    rows: Frame, title: str, ends: Sequence[str] = (), also: Sequence[float | int] = ()
) -> tuple[Frame, dict[str, Any]]:
    """The rows placed on a log axis that fits them, and that axis: see `axes.floored` for exact zeros.

    ends: columns of the ends of bands; one that cannot stand on the axis reaches its lower edge. also: further values
    that the axis has to hold.
    """
    axes.require_finite(rows["value"], title)
    rows, floor = axes.floored(rows)
    known = pd.concat([rows["shown"], *(rows[end][rows[end] > 0] for end in ends), pd.Series(also, dtype=float)])
    rows = rows.assign(**{end: rows[end].where(rows[end].isna() | (rows[end] > 0), known.min()) for end in ends})
    scale, axis = axes.log_axis(known, floor)
    return rows, {"title": title, "scale": scale, "axis": axis}


def shares(title: str, **axis: Any) -> dict[str, Any]:
    """The axis of shares: all of 0 to 1."""
    return {"title": title, "scale": alt.Scale(domain=[0, 1], nice=False), "axis": alt.Axis(format=".0%", **axis)}


def numbers(first: int, last: int, field: str, title: str | None, padding: int = 0) -> alt.X:
    """An axis of whole numbers from `first` to `last`, with so many pixels of room at both ends."""
    scale = alt.Scale(domain=[first, max(last, first + 1)], nice=False, padding=padding)
    axis = alt.Axis(grid=False, format="d", values=axes.whole_ticks(first, last))
    return alt.X(f"{field}:Q", title=title, scale=scale, axis=axis)


def curve(
    rows: Frame,
    x: alt.X,
    y: dict[str, Any],
    hue: Any = None,
    *,
    dash: Any = None,
    bands: Sequence[Band] = (),
    points: float | int = 0,
    width: float | int = 1.5,
    tooltip: Sequence[Any] = (),
    **line: Any,
) -> list[Any]:
    """The marks: bands, lines, points with the tooltip (seen where `points`, their size, is not 0), and triangles at zeros.

    x: the axis with its field. y: title, scale and axis. hue, dash: encodings of `series` and `quantity`, or `alt.value`.
    width: of the line; 0 draws none. line: further properties of its mark.
    """
    field = "shown" if "shown" in rows else "value"
    groups = [f"{name}:N" for name in ("series", "quantity", "run") if name in rows]
    told = [*tooltip, draw.VALUE]
    base = draw.rows(draw.known(rows)).encode(x=x, detail=groups, **({} if hue is None else {"color": hue}))
    marks = [
        draw.rows(whole)
        .mark_area(opacity=opacity)
        .encode(x=x, y=alt.Y(f"{low}:Q", **y), y2=f"{high}:Q", detail=groups, **({} if hue is None else {"color": hue}))
        for low, high, opacity in bands
        if {low, high} <= {*rows} and len(whole := rows.dropna(subset=[low, high]).dropna(axis="columns"))
    ]
    base = base.encode(y=alt.Y(f"{field}:Q", **y))
    if width:
        lines = base.mark_line(strokeWidth=width, **line)
        marks.append(lines if dash is None else lines.encode(strokeDash=dash))
    marks.append(base.mark_circle(size=points or 24, opacity=1 if points else 0).encode(tooltip=told))
    zeros = bool(rows["zero"].any()) if "zero" in rows else False
    return marks + ([axes.zero_marks(base.encode(tooltip=told))] if zeros else [])


def grid(panels: Mapping[str, Any], x: alt.X, y: dict[str, Any], columns: int, size: tuple[int, int]) -> list[Any]:
    """Rows of panels on one pair of axes, whose words stand at the left and under the last panel of each column.

    panels: by title the function that makes the marks of a panel from its two axes.
    """
    drawn = [
        draw.layers(
            *marks(x if place >= len(panels) - columns else draw.quiet(x), draw.quiet(y) if place % columns else y),
            width=size[0],
            height=size[1],
            title=draw.heading(title, fontSize=12, fontWeight="bold"),
        )
        for place, (title, marks) in enumerate(panels.items())
    ]
    return draw.in_rows(drawn, columns)
