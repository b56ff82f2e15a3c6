"""Figure 5 as in the paper, four panels of distance against length; under them the second pair of
(d), without theorem.
"""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from ostools.ground.words import title_of
from ostools.paper.figure5 import FIGURE_5_READING, Figure5
from ostools.reporting.charts.collapse import (
    jumps,
    marked_limits,
    marked_ranges,
    model_limits,
    strips,
)
from ostools.reporting.findings.collapse import overflow_sentence
from ostools.reporting.forms import curve
from ostools.reporting.style import axes, draw, theme
from ostools.results import Chart, Frame, frame_of

WIDTH, HEIGHT = 330, 190
_WORDS = {
    "a": "n ones",
    "b": "n digits, uniform but for a last 1, against one 1 more",
    "c": "n ones, to be copied",
    "d": "n ones to be copied, a comma after every third",
}
_ONE_MORE_DIGIT = "one digit more, after a comma (111 and 111,1): no theorem"
_LINES: dict[str, tuple[str, list[float]]] = {
    "distance": ("measured distance (dots where it jumps)", [1, 0]),
    "noise": ("rounding noise of the difference", [1.5, 2.5]),
    "machine_line": ("machine line: one representable step", [7, 4]),
}
_HEADS = ("head_minimum", "head_maximum")
_NOTES = (
    "Line: mean over heads (chunks of d_model / H), in (b) over draws of digits too. Pale band: "
    "least to greatest.",
    "Hidden: the float64 distance is below the rounding noise of the difference, both as drawn.",
)


def figure_5_chart(result: Figure5) -> Chart:
    """Mean over heads with a band from the least to the greatest head, dtype by dtype, on one log
    axis for all panels.

    A pale strip covers the lengths at which a dtype hides the pair: in every seed, by the quantity
    that is drawn. Dotted lines stand where the model's training ends, and where the prompt reaches
    a sliding window or fills the context.
    """
    frame = frame_of(result)
    axes.require_finite(frame["mean"], "figure 5")
    values = frame[["mean", "head_minimum"]].to_numpy(dtype=float)
    positive = values[values > 0]
    # A decade below the least distance: floors near it are seen, those far below leave the curves
    # their room, and exact zeros stand on the edge.
    low = float(positive.min()) / 10 if positive.size else 1e-6
    top = float(frame["head_maximum"].max()) or 10 * low
    y = axes.log_channel(pd.Series([low * 1.25, top]), "L∞ distance")
    # The pair of no theorem has a row of its own.
    panels: dict[bool, list[alt.LayerChart]] = {True: [], False: []}
    for (_, pair), group in frame.groupby(["panel", "pair"], sort=False):
        panels[pair == "theorem"].append(_panel(result, group, y, low))
    rows = [*draw.in_rows(panels[True], 2), *([panel] for panel in panels[False])]
    model = title_of(result.provenance.model)
    title = f"Figure 5 on {model}: L∞ distance at v^(L) of v and v*, its last token once more"
    overflow = set(result.verdicts["dtype"]) - set(frame["dtype"])
    notes = [*result.deviations, *_NOTES, *filter(None, [overflow_sentence(sorted(overflow))])]
    return draw.figure(rows, title, notes, spacing=28, between=22)


def _panel(result: Figure5, group: Frame, y: theme.Looks, low: float) -> alt.LayerChart:
    """Bands, curves and faintly the floors; the first dtype is the broadest, for the others lie on
    top of it.
    """
    panel, pair = str(group["panel"].iloc[0]), str(group["pair"].iloc[0])
    x = axes.length_axis(frame_of(result)["length"], "length n (digits)")
    dtypes, rows = list(dict.fromkeys(group["dtype"])), _rows(group, low)
    hue = draw.hue("series", dtypes, columns=1, symbolStrokeWidth=4)
    looks: theme.Looks = {"dash": draw.dashes(_LINES, _LINES), "clip": True}
    dotted = any(jumps(dtype_rows["mean"]) for _, dtype_rows in group.groupby("dtype"))
    verdicts = _hidden(result, panel, pair)
    ranges = [
        {"length": span.first, "end": span.last, "series": dtype}
        for dtype, verdict in verdicts.items()
        for span in verdict.ranges
    ]
    floors = rows["quantity"] != "distance"
    marks = strips(ranges, hue, 0.12) + curve(rows[floors], x, y, hue, width=0.9, **looks)
    for place, dtype in enumerate(dtypes):
        dtype_rows = rows[~floors & (rows["series"] == dtype)]
        line: theme.Looks = {"width": 1.2 if place else 2.4}
        line = {"width": 0, "points": 6 if place else 12} if dotted else line
        marks += curve(dtype_rows, x, y, hue, bands=[(*_HEADS, 0.13)], **looks | line)
    limits = model_limits(result.curves[panel])
    marks += marked_ranges(ranges, words=False) + marked_limits(limits, 6, 11)
    prompt = theme.inert(str(result.provenance.parameters["prompts"][panel]))
    where = "; ".join(f"{dtype}: {verdict.where}" for dtype, verdict in verdicts.items())
    name, lines = f"({panel}) {_ONE_MORE_DIGIT}", [f"“{prompt}” (n = 6)"]
    if pair == "theorem":
        name, lines = f"({panel}) {_WORDS[panel]}", [*lines, f"hidden n: {where}"]
    return draw.panel(marks, WIDTH, HEIGHT, draw.heading(name, lines, fontWeight="bold"))


def _rows(group: Frame, low: float) -> Frame:
    """Each number of the lines at its length, none below the axis; a floor below it is left out."""
    names = {"mean": "distance", "pair_noise": "noise", "dtype": "series"}
    group = group.drop(columns="noise").rename(columns=names)
    rows: Frame = group.melt(["length", "series", *_HEADS], [*_LINES], "quantity")
    rows = rows[(rows["quantity"] == "distance") | (rows["value"] >= low)].copy()
    numbers = ["value", *_HEADS]
    rows[numbers] = rows[numbers].clip(lower=low)
    return rows


def _hidden(result: Figure5, panel: str, pair: str) -> dict[str, Any]:
    """The verdict of each dtype, all seeds together, on the quantity that is drawn."""
    verdicts = result.curves[panel].verdicts_over_seeds(*FIGURE_5_READING[1:])
    return {
        dtype: verdict
        for (kind, dtype, site, _), verdict in verdicts.items()
        if (kind, site) == (pair, FIGURE_5_READING.site)
    }


def figure_5_findings(result: Figure5) -> list[str]:
    """The lengths at which each dtype hides the theorem's pair, a sentence a panel."""
    sentences = []
    for panel in result.curves:
        verdicts = _hidden(result, panel, "theorem").items()
        where = "; ".join(f"{dtype} {verdict.where}" for dtype, verdict in verdicts)
        sentences.append(f"({panel}) {_WORDS[panel]}: hidden n: {where}.")
    return sentences
