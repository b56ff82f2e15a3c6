"""Form: a heat map. A cell for every pair of a row and a column, its value as a colour, with a number where there is room."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from ostools.reporting.look import axes, draw
from ostools.results import Column, Frame

LIGHT = "datum.value < 0.435"
"""Where viridis over 0 to 1 is so dark that a number on it is white: its contrast is at least 4.5, as is black's elsewhere."""


def gradient(title: str | None, length: int = 260, **looks: Any) -> alt.Legend:
    """A horizontal legend of colours below the chart."""
    place: dict[str, Any] = {"orient": "bottom", "direction": "horizontal", "gradientLength": length, "titleLimit": 0}
    return alt.Legend(title=title, **(place | looks))


def log_colour(values: Column, title: str, scheme: Any = "viridis") -> alt.Color:
    """A logarithmic scale over the values that are not 0, with round numbers in its legend."""
    shown = values[values > 0]
    domain = [float(shown.min()), float(shown.max())] if len(shown) else [0.1, 1.0]
    ticks = axes.log_axis(shown if len(shown) else values + 1.0, None)[1]
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
