"""Form: bars with intervals. A value for each name, as a bar from zero or a point, with thin and thick intervals around it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from ostools.reporting.look import axes, draw
from ostools.results import Frame

Interval = tuple[str, str, float | int]
"""Two columns, and the width of the rule between them."""
SQUARE: dict[str, Any] = {"symbolType": "square", "symbolSize": 70, "symbolStrokeWidth": 6, "columns": 3}
"""A legend of bars."""


def names(
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
    other = "y" if upright else "x"
    places = {along: name} | ({} if offset is None else {f"{along}Offset": offset})
    told = [*tooltip, draw.VALUE, *(f"{end}:Q" for low, high, _ in intervals[:1] for end in (low, high))]
    base = draw.rows(draw.known(rows)).encode(color=hue, tooltip=told, **places)
    marks: list[Any] = [
        base.transform_filter(f"isValid(datum.{low})")
        .mark_rule(strokeWidth=width)
        .encode(**{other: number(f"{low}:Q", **value), f"{other}2": f"{high}:Q"})
        for low, high, width in intervals
    ]
    base = base.encode(**{other: number(f"{'shown' if 'shown' in rows else 'value'}:Q", **value)})
    mark = base.mark_point(filled=True, size=size, opacity=1, **bar) if size else base.mark_bar(**bar)
    marks.append(mark if shape is None else mark.encode(shape=shape))
    return marks + ([axes.zero_marks(base)] if "zero" in rows and bool(rows["zero"].any()) else [])
