"""The tokens of a chat template in a chart: pale names, under a grey band, so that the user's text stands out.

A heat map has no ground for a band: there a grey line runs under its columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from ostools.ground.lengths import in_a_row
from ostools.models.chat import SPECIAL, TEXT
from ostools.reporting.look import axes, theme
from ostools.results import Frame

NOTE = "Grey: tokens that are not the text's (chat template, system prompt)."
"""What a chart with such tokens says."""
_LINE = 2  # pixels: names begin right below


def aside(frame: Frame) -> list[int]:
    """The positions of all tokens that are not the text's, of a prompt in a chat template; none of any other prompt."""
    if "origin" not in frame or frame["origin"].isna().any() or set(frame["origin"]) <= {SPECIAL, TEXT}:
        return []
    return sorted({int(place) for place in frame.loc[frame["origin"] != TEXT, "position"]})


def notes(positions: Sequence[int]) -> list[str]:
    """The line about them in a chart's subtitle, where there are any."""
    return [NOTE] if positions else []


def banded(chart: Any, positions: Sequence[int]) -> Any:
    """The chart, whose x is the position, over a grey band at each run of these positions."""
    if not positions:
        return chart
    data = _runs(positions, -0.5)
    rects = axes.chart(data).mark_rect(color=theme.colour("opening"), opacity=0.14, clip=True)
    return alt.layer(axes.unfolded(rects.encode(x=alt.X("from:Q"), x2="to:Q"), data), chart)


def underlined(chart: Any, positions: Sequence[int], height: int, start: float = -0.5) -> Any:
    """The heat map, `height` pixels high, over a grey line at each run of these positions; `start`: of column 0."""
    if not positions:
        return chart
    data = _runs(positions, start)
    line = axes.chart(data).mark_rect(color=theme.colour("opening"))
    y, y2 = alt.value(height), alt.value(height + _LINE)
    return alt.layer(chart, axes.unfolded(line.encode(x=alt.X("from:Q"), x2="to:Q", y=y, y2=y2), data))


def _runs(positions: Sequence[int], start: float) -> Frame:
    """From where to where each run of neighbours goes on the axis, where a column is 1 wide."""
    runs = in_a_row(positions)
    return pd.DataFrame({"from": [run[0] + start for run in runs], "to": [run[-1] + start + 1.0 for run in runs]})
