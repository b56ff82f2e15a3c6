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
_HEADS, _DRAWS = ("head_minimum", "head_maximum"), ("interval_low", "interval_high")
_QUOTED = 58  # letters of a prompt that a panel's title has room for


def figure_5_chart(result: Figure5) -> Chart:
    """Mean over heads with a band from the least to the greatest head, dtype by dtype, on one log
    axis for all panels.

    In (b) the darker band is the bootstrap interval of the mean over seeds. A pale strip covers the
    lengths at which a dtype hides the pair: in every seed, by the quantity that is drawn. Dotted
    lines stand where the model's training ends, and where the prompt reaches a sliding window or
    fills the context.
    """
    frame = frame_of(result)
    axes.require_finite(frame["mean"], "figure 5")
    low = _bottom(frame)
    top = float(frame["head_maximum"].max()) or 10 * low
    y = axes.log_channel(pd.Series([low * 1.25, top]), "L∞ distance")
    panels = [
        # The pair of no theorem has a row of its own.
        (str(group["pair"].iloc[0]) != "theorem", _panel(result, group, y, low))
        for _, group in frame.groupby(["panel", "pair"], sort=False)
    ]
    rows = draw.in_rows([panel for off_theorem, panel in panels if not off_theorem], 2)
    rows = [*rows, *([panel] for off_theorem, panel in panels if off_theorem)]
    model = title_of(result.provenance.model)
    title = f"Figure 5 on {model}: L∞ distance at v^(L) of v and v*, its last token once more"
    return draw.figure(rows, title, _notes(result, low), spacing=28, between=22)


def _notes(result: Figure5, low: float) -> list[str]:
    frame = frame_of(result)
    marks = "Line: mean over heads (chunks of d_model / H). Pale band: least to greatest. "
    if (most := int(frame["seeds"].max())) > 1:
        band = (
            "with the mean's 95% bootstrap interval"
            if frame["interval_low"].notna().any()
            else "too few for an interval"
        )
        marks += f"In (b) over {most} draws of digits too, {band}."
    notes = (
        "Hidden: the float64 distance is below the rounding noise of the difference, both as drawn."
    )
    noise = frame.groupby("dtype", sort=False)["pair_noise"].max()
    if below := [str(dtype) for dtype, most in noise.items() if most < low]:
        notes += f" Below these axes: noise of {', '.join(below)}."
    if overflow := [
        name for name in result.verdicts["dtype"].unique() if name not in set(frame["dtype"])
    ]:
        notes += f" {overflow_sentence(overflow)}"
    if ((frame["mean"] == 0) | (frame["head_minimum"] == 0)).any():
        marks += " On the lower edge: exact zeros."
    return [line for line in (*result.deviations, marks, notes) if line]


def _bottom(frame: Frame) -> float:
    """Where the log axis begins: a decade below the least distance, so that floors near it are
    seen, and those far below leave the curves their room.
    """
    values = frame[["mean", "head_minimum"]].to_numpy(dtype=float)
    positive = values[values > 0]
    return float(positive.min()) / 10 if len(positive) else 1e-6


def _panel(result: Figure5, group: Frame, y: theme.Looks, low: float) -> alt.LayerChart:
    """Bands, curves and faintly the floors; the first dtype is the broadest, for the others lie on
    top of it.
    """
    panel, pair = str(group["panel"].iloc[0]), str(group["pair"].iloc[0])
    x = axes.length_axis(frame_of(result)["length"], "length n (digits)")
    dtypes, rows = list(dict.fromkeys(group["dtype"])), _rows(group, low)
    hue = draw.hue("series", dtypes, columns=1, symbolStrokeWidth=4)
    looks: theme.Looks = {"dash": draw.dashes(_LINES, _LINES)}
    dotted = any(jumps(dtype_rows["mean"]) for _, dtype_rows in group.groupby("dtype"))
    alone = group["length"].nunique() == 1  # a line of one point is not seen
    bands = [(*_HEADS, 0.13), (*_DRAWS, 0.32)]
    ranges = [
        {"length": span.first, "end": span.last, "series": dtype}
        for dtype, verdict in _hidden(result, panel, pair).items()
        for span in verdict.ranges
    ]
    floors = rows["quantity"] != "distance"
    marks = strips(ranges, hue, 0.12) + curve(
        rows[floors], x, y, hue, width=0.9, clip=True, **looks
    )
    for place, dtype in enumerate(dtypes):
        dtype_rows = rows[~floors & (rows["series"] == dtype)]
        broad: theme.Looks = {"width": 1.2 if place else 2.4, "clip": True}
        broad = (
            {"width": 0, "points": (6 if place else 12) * (1 + 2 * alone)}
            if dotted or alone
            else broad
        )
        marks += curve(dtype_rows, x, y, hue, bands=bands, **(looks | broad))
    marks += marked_ranges(ranges, words=False) + marked_limits(
        model_limits(result.curves[panel]), 6, 11
    )
    return draw.panel(marks, WIDTH, HEIGHT, _heading(result, panel, pair))


def _rows(group: Frame, low: float) -> Frame:
    """Each number of the lines at its length, none below the axis; a floor below it is left out."""
    ids = ["length", "dtype", *_HEADS, *_DRAWS]
    rows: Frame = group.melt(ids, ["mean", "pair_noise", "machine_line"], "quantity").rename(
        columns={"dtype": "series"}
    )
    rows = rows.assign(
        quantity=rows["quantity"].replace({"mean": "distance", "pair_noise": "noise"})
    )
    rows = rows[(rows["quantity"] == "distance") | (rows["value"] >= low)]
    numbers = ["value", *_HEADS, *_DRAWS]
    rows[numbers] = rows[numbers].clip(lower=low)
    return rows


def _hidden(result: Figure5, panel: str, pair: str) -> dict[str, Any]:
    """The verdict of each dtype, all seeds together, on the quantity that is drawn."""
    every = (
        result.curves[panel]
        .verdicts_over_seeds(FIGURE_5_READING.per, FIGURE_5_READING.norm)
        .items()
    )
    return {
        dtype: verdict
        for (kind, dtype, site, _), verdict in every
        if (kind, site) == (pair, FIGURE_5_READING.site)
    }


def figure_5_findings(result: Figure5) -> list[str]:
    """The lengths at which each dtype hides the theorem's pair, a sentence a panel."""
    sentences = []
    for panel in result.curves:
        verdicts = _hidden(result, panel, "theorem").items()
        where = [
            f"{dtype} {verdict.where if verdict.ranges else 'in no range'}"
            for dtype, verdict in verdicts
        ]
        sentences.append(f"({panel}) {_WORDS[panel]}: hidden n: {'; '.join(where)}.")
    return sentences


def _heading(result: Figure5, panel: str, pair: str) -> alt.TitleParams:
    prompt = str(result.provenance.parameters["prompts"][panel])
    quoted = prompt if len(prompt) <= _QUOTED else f"…{prompt[-_QUOTED:]}"
    name = f"({panel}) {_WORDS[panel] if pair == 'theorem' else _ONE_MORE_DIGIT}"
    range_words = [
        f"{dtype}: {verdict.where}" for dtype, verdict in _hidden(result, panel, pair).items()
    ]
    lines = [
        f"“{theme.inert(quoted)}” (n = 6)",
        *([f"hidden n: {'; '.join(range_words)}"] if range_words and pair == "theorem" else []),
    ]
    return draw.heading(name, lines, fontWeight="bold")
