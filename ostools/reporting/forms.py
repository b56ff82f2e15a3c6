"""The five forms of every chart: a curve with its floor, a token profile, a heat map, bars with intervals, a table.

A form returns the marks of one panel, or the panel. A result's chart says which rows, axes, colours and words they have
(`ostools.reporting.charts`), and adds as marks of its own what no form can say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import pandas as pd

from ostools.reporting.style import axes, draw, theme
from ostools.reporting.style.prompt import band_template, colour_regions, regions_height
from ostools.results import Column, Frame

Band = tuple[str, str, float | int]
"""Two columns, and the opacity of the area between them."""
BAND: Band = ("low", "high", 0.2)


def log_rows(
    rows: Frame, title: str, ends: Sequence[str] = (), also: Sequence[float | int] = ()
) -> tuple[Frame, dict[str, Any]]:
    """The rows placed on a log axis that fits them, and that axis: see `axes.floored` for exact zeros.

    ends: columns of the ends of bands; one that cannot stand on the axis reaches its lower edge. also: further values
    that the axis has to hold.
    """
    axes.require_finite(rows["value"], title)
    rows, floor = axes.floored(rows)
    axis_values = pd.concat([rows["shown"], *(rows[end][rows[end] > 0] for end in ends), pd.Series(also, dtype=float)])
    rows = rows.assign(**{end: rows[end].where(rows[end].isna() | (rows[end] > 0), axis_values.min()) for end in ends})
    return rows, axes.log_channel(axis_values, title, floor)


def share_axis(title: str, **axis: Any) -> dict[str, Any]:
    """The axis of shares: all of 0 to 1."""
    return {"title": title, "scale": alt.Scale(domain=[0, 1], nice=False), "axis": alt.Axis(format=".0%", **axis)}


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
    tooltips = [*tooltip, draw.VALUE]
    base = draw.rows(draw.without_nan(rows)).encode(x=x, detail=groups, **({} if hue is None else {"color": hue}))
    marks = [
        draw.rows(band_rows)
        .mark_area(opacity=opacity)
        .encode(x=x, y=alt.Y(f"{low}:Q", **y), y2=f"{high}:Q", detail=groups, **({} if hue is None else {"color": hue}))
        for low, high, opacity in bands
        if {low, high} <= {*rows} and len(band_rows := rows.dropna(subset=[low, high]).dropna(axis="columns"))
    ]
    base = base.encode(y=alt.Y(f"{field}:Q", **y))
    if width:
        lines = base.mark_line(strokeWidth=width, **line)
        marks.append(lines if dash is None else lines.encode(strokeDash=dash))
    marks.append(base.mark_circle(size=points or 24, opacity=1 if points else 0).encode(tooltip=tooltips))
    zeros = bool(rows["zero"].any()) if "zero" in rows else False
    return marks + ([axes.zero_marks(base.encode(tooltip=tooltips))] if zeros else [])


def panel_grid(
    panels: Mapping[str, Any], x: alt.X, y: dict[str, Any], columns: int, size: tuple[int, int]
) -> list[Any]:
    """Rows of panels on one pair of axes, whose words stand at the left and under the last panel of each column.

    panels: by title the function that makes the marks of a panel from its two axes.
    """
    panel_charts = [
        draw.layers(
            *marks(x if place >= len(panels) - columns else draw.quiet(x), draw.quiet(y) if place % columns else y),
            width=size[0],
            height=size[1],
            title=draw.heading(title, fontSize=12, fontWeight="bold"),
        )
        for place, (title, marks) in enumerate(panels.items())
    ]
    return draw.in_rows(panel_charts, columns)


TOKENS_WIDTH = 620
TOOLTIP = ("position:Q", "token:N", "series:N")


def token_labels(frame: Frame) -> list[str]:
    """The tokens of a table in the order of their positions, fit to be shown."""
    places = frame.drop_duplicates("position").sort_values("position")
    return [theme.short_word(str(token)) for token in places["token"]]


def token_rows(frame: Frame, **columns: Any) -> Frame:
    """The columns position and token of a table, fit to be drawn, and these."""
    tokens = [theme.short_word(str(token)) for token in frame["token"]]
    return frame[["position"]].astype(int).assign(token=tokens, **columns)


def point_size(tokens: Sequence[str]) -> int:
    """The size of points: they are seen only where there is room between them."""
    return 16 if len(tokens) <= axes.TOKENS_NAMED else 0


def profile(
    rows: Frame,
    tokens: list[str],
    y: dict[str, Any],
    hue: Any,
    *,
    title: str = "",
    height: int = 260,
    last: bool = True,
    aside: Sequence[int] = (),
    coloured: bool = True,
    above: Sequence[Any] = (),
    below: Sequence[Any] = (),
    **looks: Any,
) -> Any:
    """One panel: a curve a series over the tokens.

    last: False leaves the names of tokens to a panel below. aside: positions of tokens that are not the text's.
    coloured: whether the regions of the prompt are. above, below: further marks, over the curves or under them.
    looks: of `curve`.
    """
    x = axes.token_axis(tokens, last, aside=aside)
    curves = curve(rows, x, y, hue, **({"points": point_size(tokens), "tooltip": TOOLTIP} | looks))
    panel = band_template(alt.layer(*below, *curves, *above), aside)
    if coloured:
        panel = colour_regions(panel, tokens, last, aside)
    heading = {"title": draw.heading(title, above=regions_height(tokens) if coloured else 0)} if title else {}
    return panel.properties(width=TOKENS_WIDTH, height=height, **heading)


LIGHT = "datum.value < 0.435"
"""Where viridis over 0 to 1 is so dark that a number on it is white: its contrast is at least 4.5, as is black's elsewhere."""


def gradient(title: str | None, length: int = 260, **looks: Any) -> alt.Legend:
    """A horizontal legend of colours below the chart."""
    place: dict[str, Any] = {"orient": "bottom", "direction": "horizontal", "gradientLength": length, "titleLimit": 0}
    return alt.Legend(title=title, **(place | looks))


def log_colour(values: Column, title: str, scheme: Any = "viridis") -> alt.Color:
    """A logarithmic scale over the values that are not 0, with round numbers in its legend."""
    positive = values[values > 0]
    domain = [float(positive.min()), float(positive.max())] if len(positive) else [0.1, 1.0]
    ticks = axes.log_axis(positive if len(positive) else values + 1.0, None)[1]
    legend = gradient(f"{title} (log scale)", 320, values=ticks["values"], labelExpr=ticks["labelExpr"])
    return alt.Color("value:Q", scale=alt.Scale(type="log", scheme=scheme, domain=domain), legend=legend)


def heat(
    cells: Frame,
    x: alt.X,
    y: alt.Y,
    colour: Any,
    tooltip: Sequence[Any],
    *,
    across: str = "",
    up: str = "",
    digits: str = "",
    light: str = LIGHT,
) -> list[Any]:
    """The marks: cells, and the number of each where `digits` has its format.

    cells: `value` and what the axes name. across, up: columns where a cell ends, of an axis of numbers. light: the
    expression that says where a cell is so dark that its number is white.
    """
    base = draw.rows(cells).encode(x=x, y=y)
    ends = ({"x2": f"{across}:Q"} if across else {}) | ({"y2": f"{up}:Q"} if up else {})
    marks = [base.mark_rect().encode(color=colour, tooltip=[*tooltip, draw.VALUE], **ends)]
    if digits:
        ink = alt.condition(light, alt.value("#ffffff"), alt.value("#000000"))
        marks.append(base.mark_text(fontSize=9).encode(text=alt.Text("value:Q", format=digits), color=ink))
    return marks


def layers_by(cells: Frame, x: str, title: str, scale: alt.Scale, **looks: Any) -> list[Any]:
    """A row a layer, the first at the bottom, and a column an `x`; `looks` are `heat`'s."""
    across = alt.X(f"{x}:O", title=title, axis=alt.Axis(labelAngle=0, ticks=False, labelOverlap=True))
    up = alt.Y("layer:O", title="layer", sort="descending", axis=alt.Axis(ticks=False, labelOverlap=True))
    legend = alt.Legend(title=None, orient="right", gradientLength=80, format=".2~g", tickCount=3)
    colour = alt.Color("value:Q", scale=scale, legend=legend)
    return heat(cells, across, up, colour, ["layer:O", alt.Tooltip(f"{x}:O", title=title)], **looks)


Interval = tuple[str, str, float | int]
"""Two columns, and the width of the rule between them."""
SQUARE: dict[str, Any] = {"symbolType": "square", "symbolSize": 70, "symbolStrokeWidth": 6, "columns": 3}
"""A legend of bars."""


def name_axis(
    order: Sequence[str], channel: Any = alt.Y, title: str | None = None, field: str = "name", **axis: Any
) -> Any:
    """An axis of names in this order."""
    looks: dict[str, Any] = {"ticks": False, "labelLimit": 0} | axis
    scale = alt.Scale(domain=list(order))
    return channel(f"{field}:N", sort=list(order), scale=scale, title=title, axis=alt.Axis(**looks))


def bars(
    rows: Frame,
    name: Any,
    value: dict[str, Any],
    hue: Any,
    *,
    intervals: Sequence[Interval] = (),
    offset: Any = None,
    shape: Any = None,
    size: float | int = 0,
    tooltip: Sequence[Any] = (),
    **bar: Any,
) -> list[Any]:
    """The marks: rules for the intervals, and a bar, or a point of this `size`, for each row's `value` (`shown`).

    name: the axis of names, upright (`alt.Y`) for horizontal bars. value: title, scale and axis of the other one.
    offset: keeps apart what has one name. shape: of points. bar: further properties of the mark.
    """
    upright = isinstance(name, alt.X)
    along, number = ("x", alt.Y) if upright else ("y", alt.X)
    value_channel = "y" if upright else "x"
    places = {along: name} | ({} if offset is None else {f"{along}Offset": offset})
    tooltips = [*tooltip, draw.VALUE, *(f"{end}:Q" for low, high, _ in intervals[:1] for end in (low, high))]
    base = draw.rows(draw.without_nan(rows)).encode(color=hue, tooltip=tooltips, **places)
    marks: list[Any] = [
        base.transform_filter(f"isValid(datum.{low})")
        .mark_rule(strokeWidth=width)
        .encode(**{value_channel: number(f"{low}:Q", **value), f"{value_channel}2": f"{high}:Q"})
        for low, high, width in intervals
    ]
    base = base.encode(**{value_channel: number(f"{'shown' if 'shown' in rows else 'value'}:Q", **value)})
    mark = base.mark_point(filled=True, size=size, opacity=1, **bar) if size else base.mark_bar(**bar)
    marks.append(mark if shape is None else mark.encode(shape=shape))
    return marks + ([axes.zero_marks(base)] if "zero" in rows and bool(rows["zero"].any()) else [])


def looks_by_name(field: str, looks: Mapping[str, tuple[str, str]], legend: alt.Legend | None) -> dict[str, Any]:
    """Colour and shape of each name; `looks`: by name what the theme calls its colour, and its shape."""
    colours = [theme.colour(colour) for colour, _ in looks.values()]
    shapes = [shape for _, shape in looks.values()]
    scales = [alt.Scale(domain=list(looks), range=values) for values in (colours, shapes)]
    return {
        "color": alt.Color(f"{field}:N", scale=scales[0], legend=legend),
        "shape": alt.Shape(f"{field}:N", scale=scales[1], legend=legend),
    }


def mark_cells(
    rows: Frame, column: alt.X, row: alt.Y, looks: Mapping[str, Any], tooltip: Sequence[Any], size: int = 34
) -> Any:
    """A mark where each row and column meet; `looks`: of `by_name`, and an offset where several meet in one place."""
    points = draw.rows(rows).mark_point(filled=True, size=size, strokeWidth=2, opacity=1)
    return points.encode(x=column, y=row, tooltip=list(tooltip), **looks)


def word_cells(rows: Frame, column: alt.X, row: alt.Y, hue: Any, words: str, tooltip: Sequence[Any]) -> list[Any]:
    """A cell in the colour of its name, with its words in it."""
    base = draw.rows(rows).encode(x=column, y=row, tooltip=list(tooltip))
    text = base.mark_text(fontSize=9, color="black").encode(text=f"{words}:N")
    return [base.mark_rect(opacity=0.8).encode(color=hue), text]
