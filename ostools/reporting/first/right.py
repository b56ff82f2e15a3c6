"""The share of right answers by length, of one or two results in one chart: two tasks of a model, or two models at a task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from ostools.measure.answers.behaviour import Behaviour
from ostools.reporting.look import axes, draw, theme
from ostools.results import Frame

COLOURS = (theme.COLOURS["full"], theme.COLOURS["frozen"])
SHAPES = ("circle", "M-1,-1L1,1M1,-1L-1,1")
"""A ring and a cross. Neither covers the other where two points fall into one place."""
_DASHES = ([1, 0], [5, 4])
_ASIDE = (-2.5, 2.5)
"""Pixels that an interval stands beside its length: two equal ones stay two."""
_COLUMNS = ["length", "accuracy", "wilson_low", "wilson_high", "right", "asked"]


def told_apart(field: str, names: Sequence[str], columns: int = 1) -> dict[str, Any]:
    """A colour and a mark of each of at most two names, in one legend."""
    shown = [theme.inert(name) for name in names]
    shape = alt.Shape(
        f"{field}:N",
        scale=alt.Scale(domain=shown, range=list(SHAPES[: len(shown)])),
        legend=alt.Legend(title=None, symbolSize=60, columns=columns),
    )
    hues = dict(zip(shown, COLOURS, strict=False))
    return {"color": draw.hue(field, hues, columns=columns, symbolSize=60), "shape": shape}


def right_chart(
    results: Sequence[Behaviour], names: Sequence[str], field: str, width: int, height: int, columns: int = 1
) -> alt.LayerChart:
    """A line a result, under its name, with its Wilson intervals where it has some; `field`: what the names are of."""
    shown = [theme.inert(name) for name in names]
    parts = [
        one.summary[_COLUMNS].assign(**{field: name, "place": place})
        for place, (one, name) in enumerate(zip(results, shown, strict=True))
    ]
    data: Frame = pd.concat(parts, ignore_index=True)
    scale, axis = alt.Scale(domain=[0, 1], nice=False, padding=5), alt.Axis(values=[0, 0.5, 1], format=".0%")
    apart = told_apart(field, names, columns)
    x = axes.length_axis(data["length"], "items of the sequence")
    base = draw.rows(data.drop(columns=["wilson_low", "wilson_high"])).encode(
        x=x,
        y=alt.Y("accuracy:Q", title="right answers", scale=scale, axis=axis),
        tooltip=[f"{field}:N", "length:Q", "right:Q", "asked:Q"],
    )
    lines = [
        base.transform_filter(f"datum.place === {place}")
        .mark_line(strokeWidth=1.5, strokeDash=_DASHES[place])
        .encode(color=apart["color"])
        for place in range(len(shown))
    ]
    points = base.mark_point(filled=False, size=40, strokeWidth=1.5, opacity=1).encode(**apart)
    return axes.themed(draw.layers(*_intervals(data, x, apart["color"]), *lines, points, width=width, height=height))


def _intervals(data: Frame, x: alt.X, colour: alt.Color) -> list[Any]:
    """The Wilson intervals of each result, beside those of the other."""
    known = data.dropna(subset=["wilson_low"])
    ends = draw.rows(known).encode(x=x, y="wilson_low:Q", y2="wilson_high:Q", color=colour)
    return [
        ends.transform_filter(f"datum.place === {place}").mark_rule(strokeWidth=3, opacity=0.45, xOffset=_ASIDE[place])
        for place in sorted(set(known["place"]))
    ]
