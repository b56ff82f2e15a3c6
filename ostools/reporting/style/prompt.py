"""The tokens of a chat template in a chart, grey, and in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import altair as alt
import pandas as pd

from ostools.ground.whole_numbers import in_a_row
from ostools.models.chat import SPECIAL, TEXT
from ostools.reporting.style import draw, theme
from ostools.results import Frame, Looks

TEMPLATE_NOTE = "Grey: tokens that are not the text's (chat template, system prompt)."
"""What a chart with such tokens says."""


def template_positions(frame: Frame) -> list[int]:
    """The positions of all tokens that are not the text's, of a prompt in a chat template; none of
    any other.
    """
    if (
        "origin" not in frame
        or frame["origin"].isna().any()
        or set(frame["origin"]) <= {SPECIAL, TEXT}
    ):
        return []
    return sorted({int(place) for place in frame.loc[frame["origin"] != TEXT, "position"]})


def template_note(positions: Sequence[int]) -> list[str]:
    """The line about them in a chart's subtitle, where there are any."""
    return [TEMPLATE_NOTE] if positions else []


def mark_template(
    chart: alt.LayerChart, positions: Sequence[int], height: int = 0, start: float = -0.5
) -> alt.LayerChart:
    """The chart, whose x is the position, with grey behind each run of these positions.

    height: of a heat map, which gets a grey line under it instead. start: where column 0 begins on
        its axis.
    """
    if not positions:
        return chart
    runs = in_a_row(positions)
    data = pd.DataFrame(
        {"from": [run[0] + start for run in runs], "to": [run[-1] + start + 1.0 for run in runs]}
    )
    grey: Looks = {"color": theme.colour("template"), "opacity": 1 if height else 0.14}
    mark = draw.rows(data).mark_rect(clip=not height, **grey).encode(x="from:Q", x2="to:Q")
    line = mark.encode(y=alt.value(height), y2=alt.value(height + 2))
    layers, title = (chart, line) if height else (mark, chart), chart["title"]
    chart["title"] = alt.Undefined
    return cast(alt.LayerChart, alt.layer(*layers, title=title))


def template_share(every: Frame, rows: Frame, column: str) -> str:
    """A sentence, a blank before it: what the tokens have of the sum of a column that are not among
    the rows.
    """
    total, part = float(every[column].sum()), float(rows[column].sum())
    count = len(every) - len(rows)
    special = set(every["origin"]) <= {SPECIAL, TEXT} if "origin" in every else True
    name = f"{'special ' * special}token{'s' * (count > 1)}"
    name += "" if special else " of the chat template"
    words = (
        f" Of the sum over all {len(every)} tokens the {count} {name} "
        f"{'have' if count > 1 else 'has'}"
    )
    return f"{words} {(total - part) / total:.1%}." if count and total else ""
