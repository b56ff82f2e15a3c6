"""What the charts are put together of: rows to be drawn, a panel's words, colours and dashes by name, log axes with zeros."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import altair as alt

from ostools.reporting.look import axes
from ostools.results import Column, Frame

VALUE = alt.Tooltip("value:Q", format=".4g")
"""What the cursor tells of a number."""


def rows(data: Frame) -> Any:
    """A chart of these rows, to be marked and encoded."""
    return axes.unfolded(axes.chart(data), data)


def known(data: Frame) -> Any:
    """The rows with nothing in the place of every NaN, which a page's JSON does not have: a line breaks there."""
    return data.astype(object).where(data.notna(), None)


def layers(*marks: Any, **properties: Any) -> Any:
    """Marks over each other in one panel, with its width, height and title."""
    chart: Any = alt.layer(*marks)
    return chart.properties(**properties)


def heading(text: str, above: int = 0) -> alt.TitleParams:
    """A panel's own title, smaller than the chart's, `above` so many pixels that the panel's marks take over its edge."""
    return alt.TitleParams(text, fontSize=11, fontWeight="normal", offset=6 + above, frame="group")


def hue(field: str, colours: Mapping[str, str], **legend: Any) -> alt.Color:
    """The colour of each name, in a legend without a title unless it is given one."""
    scale = alt.Scale(domain=list(colours), range=list(colours.values()))
    options: dict[str, Any] = {"title": None} | legend
    return alt.Color(f"{field}:N", scale=scale, legend=alt.Legend(**options))


def dashes(
    looks: Mapping[str, tuple[str, Sequence[float | int]]], present: Iterable[str], **legend: Any
) -> alt.StrokeDash:
    """The dash of each quantity that is present; `looks`: by quantity the legend's words and the dash."""
    there = set(present)
    known = [name for name in looks if name in there]
    words = axes.lookup(known, [looks[name][0] for name in known])
    scale = alt.Scale(domain=known, range=[looks[name][1] for name in known])
    return alt.StrokeDash(
        "quantity:N", scale=scale, legend=alt.Legend(title=None, columns=1, labelExpr=words, **legend)
    )


def log_y(values: Column, title: str, floor: float | None = None, field: str = "shown") -> alt.Y:
    """A log axis around the values; `floor`: where exact zeros are drawn, if there are any."""
    scale, axis = axes.log_axis(values, floor)
    return alt.Y(f"{field}:Q", title=title, scale=scale, axis=axis)


def zeros(base: Any, floor: float | None) -> list[Any]:
    """The marks of exact zeros, where there are any."""
    return [] if floor is None else [axes.zero_marks(base)]
