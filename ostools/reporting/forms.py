"""The five forms of every chart: a curve with its floor, a token profile, a heat map, bars with
intervals, a table.

A form returns the marks of one panel, or the panel. A result's chart says which rows, axes and
colours they have (`ostools.reporting.charts`), and adds as marks of its own what no form can say.
What the cursor tells of a mark are the columns of its row (`draw.tooltips`); where zeros are drawn,
the figure says so (`draw.figure`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import altair as alt
import pandas as pd

from ostools.reporting.style import axes, draw, theme
from ostools.results import Column, Frame, Looks

Marks: TypeAlias = list[alt.Chart]
Encoding: TypeAlias = Any
"""An encoding, or `alt.value`: Altair types them as unions of protocols, another for each channel.
"""
Band: TypeAlias = tuple[str, str, float | int]
"""Two columns, and the opacity of the area between them."""
BAND: Band = ("low", "high", 0.2)


def log_rows(
    rows: Frame, title: str, ends: Sequence[str] = (), also: Sequence[float | int] = ()
) -> tuple[Frame, Looks]:
    """The rows placed on a log axis that fits them, and that axis: see `axes.floored` for exact
    zeros.

    ends: columns of the ends of bands; one that cannot stand on the axis reaches its lower edge.
    also: further values that the axis has to hold.
    """
    axes.require_finite(rows["value"], title)
    rows, floor = axes.floored(rows)
    values = pd.concat(
        [rows["shown"], *(rows[end][rows[end] > 0] for end in ends), pd.Series(also, dtype=float)]
    )
    rows = rows.assign(
        **{end: rows[end].where(rows[end].isna() | (rows[end] > 0), values.min()) for end in ends}
    )
    return rows, axes.log_channel(values, title, floor)


def _value(rows: Frame) -> str:
    """The field of the rows' values: where they stand on a log axis, if they have such places."""
    return f"{'shown' if 'shown' in rows else 'value'}:Q"


def _with_zeros(marks: Marks, base: alt.Chart, rows: Frame) -> Marks:
    """The marks, and triangles at exact zeros where there are some."""
    return marks + ([axes.zero_marks(base)] if "zero" in rows and rows["zero"].any() else [])


def _between(rows: Frame, bands: Sequence[Band]) -> list[tuple[alt.Chart, str, str, float]]:
    """The rows of each band that have both of its ends, the two columns, and the opacity."""
    return [
        (draw.rows(complete.dropna(axis="columns")), f"{low}:Q", f"{high}:Q", opacity)
        for low, high, opacity in bands
        if {low, high} <= {*rows} and len(complete := rows.dropna(subset=[low, high]))
    ]


def curve(
    rows: Frame,
    x: alt.X,
    y: Looks,
    hue: Encoding,
    *,
    dash: alt.StrokeDash | None = None,
    bands: Sequence[Band] = (),
    points: float | int = 0,
    width: float | int = 1.5,
    **line: object,
) -> Marks:
    """The marks: bands, lines, points (seen where `points`, their size, is not 0, and at one place
    alone, where a line is not seen), and triangles at zeros.

    x: the axis with its field. y: title, scale and axis. hue, dash: encodings of `series` and
    `quantity`, or `alt.value`. width: of the line; 0 draws none. line: further properties of its
    mark.
    """
    if rows.empty:
        return []
    if width and rows[x["shorthand"].partition(":")[0]].nunique() == 1:
        points = points or 24
    looks: Looks = {
        "x": x,
        "detail": [f"{name}:N" for name in ("series", "quantity", "run") if name in rows],
        "color": hue,
    }
    marks = [
        base.mark_area(opacity=opacity, clip=True).encode(y=alt.Y(low, **y), y2=high, **looks)
        for base, low, high, opacity in _between(rows, bands)
    ]
    base = draw.rows(rows).encode(y=alt.Y(_value(rows), **y), **looks)
    if width:
        properties: Looks = {"strokeWidth": width} | line
        lines = base.mark_line(**properties)
        marks.append(lines if dash is None else lines.encode(strokeDash=dash))
    base = base.encode(tooltip=draw.tooltips(rows))
    marks.append(base.mark_circle(size=points or 24, opacity=1 if points else 0))
    return _with_zeros(marks, base, rows)


def panel_grid(
    panels: Mapping[str, Callable[[alt.X, Looks], Marks]],
    x: alt.X,
    y: Looks,
    columns: int,
    size: tuple[int, int],
) -> list[Sequence[draw.Panel]]:
    """Rows of panels on one pair of axes, whose words stand at the left and under the last panel of
    each column.

    panels: by title the function that makes the marks of a panel from its two axes.
    """
    panel_objects = []
    for place, (title, marks) in enumerate(panels.items()):
        across = x if place >= len(panels) - columns else axes.quiet(x)
        panel_marks = marks(across, axes.quiet(y) if place % columns else y)
        panel_objects.append(draw.panel(panel_marks, *size, title, **draw.BOLD))
    return draw.in_rows(panel_objects, columns)


TOKENS_WIDTH = 620
HALF = 0.42
"""Half the width of what is drawn of a token, in tokens."""


def token_labels(frame: Frame) -> dict[int, str]:
    """The positions of a table in order, each with its token, fit to be shown."""
    places = frame.drop_duplicates("position").sort_values("position")
    tokens = map(theme.short_word, places["token"].astype(str))
    return dict(zip(places["position"].astype(int), tokens, strict=True))


def token_rows(frame: Frame, **columns: object) -> Frame:
    """The columns position and token of a table, fit to be drawn, and these."""
    tokens = [theme.short_word(str(token)) for token in frame["token"]]
    return frame[["position"]].astype(int).assign(token=tokens, **columns)


def _as_wide_as_a_token(rows: Frame) -> Frame:
    return rows.assign(start=rows["position"] - HALF, end=rows["position"] + HALF)


def profile(
    rows: Frame,
    frame: Frame,
    y: Looks,
    hue: Encoding,
    *,
    title: str = "",
    height: int = 260,
    last: bool = True,
    dash: alt.StrokeDash | None = None,
    bands: Sequence[Band] = (),
    further_marks: Sequence[alt.Chart] = (),
) -> alt.LayerChart:
    """One panel: a level a series at each token of `frame`, which no line joins; grey where a token
    is not the text's.

    last: False leaves the names of tokens to a panel below. further_marks: drawn over the levels.
    """
    tokens, aside = token_labels(frame), draw.template_positions(frame)
    rows = _as_wide_as_a_token(rows)
    x = axes.token_axis(tokens, "start", aside)
    looks: Looks = {"x": x if last else axes.quiet(x), "x2": "end:Q", "color": hue}
    marks = [
        base.mark_rect(opacity=opacity).encode(y=alt.Y(low, **y), y2=high, **looks)
        for base, low, high, opacity in _between(rows, bands)
    ]
    levels = draw.rows(rows).encode(y=alt.Y(_value(rows), **y), **looks)
    levels = levels.encode(tooltip=draw.tooltips(rows))
    marks.append(levels.mark_rule(strokeWidth=2).encode(strokeDash=dash or alt.Undefined))
    middles = axes.token_axis(tokens, "position", aside)
    marks = _with_zeros(marks, levels.encode(x=middles, x2=alt.Undefined), rows)
    return draw.mark_template(
        draw.panel([*marks, *further_marks], TOKENS_WIDTH, height, title), aside
    )


def token_bars(
    rows: Frame, tokens: Mapping[int, str], hue: Encoding, title: str, numbered: Frame | None = None
) -> alt.LayerChart:
    """One panel: bars from `low` to `high` at each token, with a line at 0; the signed parts of a
    sum. `numbered`: rows whose `value` stands at the end of their bar."""
    base = draw.rows(_as_wide_as_a_token(rows)).mark_rect()
    base = base.encode(x=axes.token_axis(tokens, "start"), x2="end:Q", color=hue)
    up = alt.Y("low:Q", title=title)
    marks = [base.encode(y=up, y2="high:Q", tooltip=draw.tooltips(rows))]
    if numbered is not None and len(numbered):
        number = alt.Text("value:Q", format="+.3g")
        side: Looks = {"dy": alt.expr("datum.high > 0 ? -7 : 9"), "fontWeight": "bold"}
        numbers = draw.rows(numbered).mark_text(**side).encode(y="high:Q", text=number)
        marks.append(numbers.encode(x=axes.token_axis(tokens, "position")))
    return draw.panel([*marks, *draw.line_at("y", "low", 0.0, dash=[1, 0])], TOKENS_WIDTH, 260)


LIGHT = "datum.value < 0.435"
"""Where viridis over 0 to 1 is so dark that a white number has a contrast of 4.5; elsewhere a black
one has.
"""


def gradient(title: str | None, length: int = 260, **looks: Any) -> alt.Legend:
    """A horizontal legend of colours below the chart."""
    return alt.Legend(
        title=title,
        gradientLength=length,
        orient="bottom",
        direction="horizontal",
        titleLimit=0,
        **looks,
    )


def log_colour(values: Column, title: str) -> alt.Color:
    """A logarithmic scale over the values that are not 0, with round numbers in its legend."""
    positive = values[values > 0] if (values > 0).any() else pd.Series([0.1, 1.0])
    ticks = axes.log_axis(positive)[1]
    domain = [float(positive.min()), float(positive.max())]
    scale = alt.Scale(type="log", scheme="viridis", domain=domain)
    words = ticks["labelExpr"]
    legend = gradient(f"{title} (log scale)", 320, values=ticks["values"], labelExpr=words)
    return alt.Color("value:Q", scale=scale, legend=legend)


def heat(
    cells: Frame,
    x: alt.X,
    y: alt.Y,
    colour: Encoding,
    *,
    digits: str = "",
    light: str = LIGHT,
    **ends: str,
) -> Marks:
    """The marks: cells, and the number of each where `digits` has its format.

    cells: `value` and what the axes name. light: the expression that says where a number is white.
    ends: `x2` and `y2`, the columns where a cell ends, of an axis of numbers.
    """
    base = draw.rows(cells).encode(x=x, y=y)
    sides: Looks = {side: f"{column}:Q" for side, column in ends.items()}
    marks = [base.mark_rect().encode(color=colour, tooltip=draw.tooltips(cells), **sides)]
    if digits:
        ink = alt.condition(light, alt.value("#ffffff"), alt.value("#000000"))
        number = base.mark_text(fontSize=9).encode(text=alt.Text("value:Q", format=digits))
        marks.append(number.encode(color=ink))
    return marks


def layers_up() -> alt.Y:
    """An axis of layers, the first at the bottom."""
    axis = alt.Axis(ticks=False, labelOverlap=True)
    return alt.Y("layer:O", title="layer", sort="descending", axis=axis)


def layers_by(cells: Frame, x: str, scale: alt.Scale, **looks: str) -> Marks:
    """A row a layer, the first at the bottom, and a column an `x`; `looks` are `heat`'s."""
    across = alt.X(f"{x}:O", title=x, axis=alt.Axis(labelAngle=0, ticks=False, labelOverlap=True))
    legend = alt.Legend(title=None, orient="right", gradientLength=80, format=".2~g", tickCount=3)
    colour = alt.Color("value:Q", scale=scale, legend=legend)
    return heat(cells, across, layers_up(), colour, **looks)


Interval: TypeAlias = tuple[str, str, float | int]
"""Two columns, and the width of the rule between them."""
SQUARE: Looks = {"symbolType": "square", "symbolSize": 70, "symbolStrokeWidth": 6, "columns": 3}
"""A legend of bars."""


def rules(rows: Frame, x: alt.X, hue: Encoding, width: float | int = 1.2) -> Marks:
    """The marks: a rule from `low` to `high` at each row's x, where it has both."""
    rows = rows.dropna(subset=["low", "high"])
    if rows.empty:
        return []
    base = draw.rows(rows).mark_rule(strokeWidth=width)
    return [base.encode(x=x, y="low:Q", y2="high:Q", color=hue)]


def bars(
    rows: Frame,
    name: Encoding,
    value: Looks,
    hue: Encoding,
    *,
    intervals: Sequence[Interval] = (),
    offset: Encoding | None = None,
    shape: Encoding | None = None,
    size: float | int = 0,
    **bar: object,
) -> Marks:
    """The marks: rules for the intervals, and a bar, or a point of this `size`, for each row's
    `value` (`shown`).

    name: the axis of names, upright (`alt.Y`) for horizontal bars. value: title, scale and axis of
        the other one.
    offset: keeps apart what has one name. shape: of points. bar: further properties of the mark.
    """
    along, across, number = ("x", "y", alt.Y) if isinstance(name, alt.X) else ("y", "x", alt.X)
    places: Looks = {along: name} | ({} if offset is None else {f"{along}Offset": offset})
    base = draw.rows(rows)
    base = base.encode(color=hue, tooltip=draw.tooltips(rows), **places)
    marks = [
        base.transform_filter(f"isValid(datum.{low})")
        .mark_rule(strokeWidth=width)
        .encode(**{across: number(f"{low}:Q", **value), f"{across}2": f"{high}:Q"})
        for low, high, width in intervals
    ]
    axis: Looks = {across: number(_value(rows), **value)}
    base = base.encode(**axis)
    properties: Looks = ({"filled": True, "size": size, "opacity": 1} if size else {}) | bar
    mark = base.mark_point(**properties) if size else base.mark_bar(**properties)
    marks.append(mark if shape is None else mark.encode(shape=shape))
    return _with_zeros(marks, base, rows)


def looks_by_name(field: str, looks: Mapping[str, tuple[str, str]], **legend: object) -> Looks:
    """Colour and shape of each name; `looks`: by name what the theme calls its colour, and its
    shape.
    """
    hue = draw.hue(field, {name: colour for name, (colour, _) in looks.items()}, **legend)
    scale = alt.Scale(domain=list(looks), range=[shape for _, shape in looks.values()])
    return {"color": hue, "shape": alt.Shape(f"{field}:N", scale=scale, legend=hue["legend"])}


def mark_cells(rows: Frame, column: alt.X, row: alt.Y, looks: Looks, size: int = 34) -> alt.Chart:
    """A mark where each row and column meet; `looks`: of `looks_by_name`, and an offset where
    several meet.
    """
    points = draw.rows(rows).mark_point(filled=True, size=size, strokeWidth=2, opacity=1)
    return points.encode(x=column, y=row, tooltip=draw.tooltips(rows), **looks)
