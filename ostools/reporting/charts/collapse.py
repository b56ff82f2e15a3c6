"""Collapse against length: how far two last-token representations are apart, dtype by dtype."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from ostools.ground.errors import InputError
from ostools.measure.collapse.result import Collapse
from ostools.measure.collapse.verdicts import CurveVerdict, Reading
from ostools.reporting.findings.collapse import (
    longest_trained,
    main_pair,
    overflow_sentence,
    vectors_at,
)
from ostools.reporting.forms import BAND, curve, log_rows, panel_grid
from ostools.reporting.style import axes, draw, theme
from ostools.results import Chart, Column, Frame, frame_of

WIDTH, HEIGHT, LINE = 240, 190, 13
PAIRS = {
    "theorem": "",
    "task": ": n and n + 1 items (no theorem)",
    "one-more-digit": ": one more digit (no theorem)",
}
"""What a panel's title adds for a pair that is not the theorem's."""
QUANTITIES: dict[str, tuple[str, list[float]]] = {
    "distance": ("measured distance of the pair (dots where it jumps)", [1, 0]),
    "reference": ("the same in float64: what collapse is read from", [5, 1.5]),
    "noise": ("rounding noise of the difference in this dtype", [1.5, 2.5]),
    "machine_line": ("machine line: one representable step", [7, 4]),
}
"""What a collapse chart draws: the legend's words and the dash."""
JUMPS = 0.08
"""A curve whose neighbours differ by more than 10^JUMPS (20%) in the median is drawn as dots: a
line would only fill a band.
"""


def collapse_chart(result: Collapse, sites: Sequence[str] = ("residual", "y", "logits")) -> Chart:
    """L2 distance between the two last-token representations against length, a panel per site,
    dtype and kind of pair.

    Each panel holds the measured distance, the rounding noise of the difference in that dtype and
    its machine line, the float64 distance beside them, and pale the ranges of lengths at which the
    pair is hidden in every seed. Dotted lines stand at the longest trained length, and where the
    prompt reaches a sliding window or fills the context. Seeds are shown by their mean, with a band
    from the least to the greatest. Raises `InputError` where every dtype overflows.
    """
    table = result.measured()
    if table.empty:
        raise InputError(f"a collapse chart: {overflow_sentence(result.overflowing())}")
    frame = pd.concat([Reading(site).of(table) for site in sites])
    rows, y = log_rows(_collapse_rows(frame), "L2 distance", ("low", "high"))
    dtypes = list(dict.fromkeys(frame["dtype"]))
    ranges = hidden_ranges(result.verdicts_over_seeds(), sites, dtypes)
    names = [_panel(site, dtype, pair) for pair in PAIRS for site in sites for dtype in dtypes]
    limits = model_limits(result)
    panels = {
        name: _curves(rows, name, [span for span in ranges if span["panel"] == name], limits)
        for name in names
        if (rows["panel"] == name).any()
    }
    panel_marks = panel_grid(
        panels, axes.length_axis(rows["length"]), y, len(dtypes), (WIDTH, HEIGHT)
    )
    tasks = ", ".join(sorted(set(map(str, frame["task"]))))
    notes = [words] if (words := overflow_sentence(result.overflowing())) else []
    title = f"Distance of the last-token representations, {tasks}"
    return draw.figure(panel_marks, title, notes, color="shared", strokeDash="shared")


def _panel(site: str, dtype: str, pair: str) -> str:
    return f"{site}, {dtype}{PAIRS.get(pair, f': {pair}')}"


def _collapse_rows(frame: Frame) -> Frame:
    """One row per point drawn: panel, length, quantity, series (the dtype that gives the colour),
    value, and its band.
    """
    keys = ["pair", "length", "dtype", "site"]
    measured = frame.groupby(keys, as_index=False, sort=False, observed=True).agg(
        distance=("mean", "mean"),
        low=("minimum", "min"),
        high=("maximum", "max"),
        noise=("pair_noise", "mean"),
        machine_line=("machine_line", "mean"),
        reference=("float64_distance", "mean"),
    )
    panel_keys = zip(measured["site"], measured["dtype"], measured["pair"], strict=True)
    # A band is drawn where there is one, if its lower end can stand on the log axis.
    wide = (measured["high"] > measured["low"]) & (measured["low"] > 0)
    measured[["low", "high"]] = measured[["low", "high"]].where(wide)
    measured = measured.assign(
        panel=[_panel(*map(str, key)) for key in panel_keys], series=measured["dtype"]
    )
    rows: Frame = measured.melt(
        ["panel", "length", "series", "low", "high"], list(QUANTITIES), "quantity"
    )
    distance, reference = rows["quantity"] == "distance", rows["quantity"] == "reference"
    rows.loc[~distance, ["low", "high"]] = np.nan
    rows = rows[(distance | rows["value"].notna()) & ~(reference & (rows["series"] == "float64"))]
    return rows.assign(series=rows["series"].mask(reference, "float64"))


def jumps(values: Column) -> bool:
    """Whether neighbours differ so much that a line would only fill a band; dots then show what it
    is made of.
    """
    steps = np.abs(np.diff(np.log10(values[values > 0].to_numpy(dtype=float))))
    return len(steps) > 30 and float(np.median(steps)) > JUMPS


def hidden_ranges(
    verdicts: Mapping[tuple[str, str, str, int], CurveVerdict],
    sites: Sequence[str],
    dtypes: Sequence[str],
) -> list[dict[str, Any]]:
    """Each range of every panel: where it begins and ends, its dtype, its words. Of v^(l) after the
    last block.
    """
    last = {site: layer for *_, site, layer in sorted(verdicts, key=lambda key: key[-1])}
    ranges = []
    for (pair, dtype, site, layer), verdict in verdicts.items():
        for span in verdict.ranges:
            holes = span.lengths_tried - span.hidden
            words = f"hidden from n = {span.first}" + ("" if span.open else f" to {span.last}")
            words += f", {holes} holes" if holes else ""
            place = {"length": span.first, "end": span.last, "words": words, "series": dtype}
            if site in sites and dtype in dtypes and layer == last[site]:
                ranges.append({"panel": _panel(site, dtype, pair), "pair": pair, **place})
    return ranges


def model_limits(result: Collapse) -> list[dict[str, Any]]:
    """Where along the lengths the model's own numbers lie, with words: the trained length, a
    sliding window, the context.
    """
    frame, limits = frame_of(result), result.provenance.parameters.get("limits", {})
    tokens = frame.groupby("length")["tokens"].min().sort_index()
    lengths, marks = list(map(int, tokens.index)), []
    trained = longest_trained(result)
    if trained is not None and lengths[0] <= trained < lengths[-1]:
        at = max(n for n in lengths if n <= trained)
        marks.append({"length": at, "words": f"trained to n = {trained}"})
    for window in limits.get("sliding_windows", ()):
        beyond_window = [n for n in lengths if tokens[n] >= window]
        if beyond_window and beyond_window[0] != lengths[0]:
            marks.append({"length": beyond_window[0], "words": f"window of {window} tokens"})
    if limits.get("context") and tokens[lengths[-1]] + 1 >= limits["context"]:
        marks.append({"length": lengths[-1], "words": f"context of {limits['context']} tokens"})
    return marks


def _curves(
    rows: Frame, name: str, ranges: list[dict[str, Any]], limits: list[dict[str, Any]]
) -> Any:
    """The marks of a panel. The reference lies under the dtype's own marks, and is thinner."""
    names, panel_data = list(dict.fromkeys(rows["series"])), rows[rows["panel"] == name]
    measured = panel_data[panel_data["quantity"] == "distance"]
    dotted = jumps(measured.sort_values("length")["value"])

    def marks(x: alt.X, y: dict[str, Any]) -> list[Any]:
        hue = draw.hue("series", names, title="dtype", columns=len(names), symbolStrokeWidth=4)
        looks: dict[str, Any] = {"bands": [BAND], "dash": draw.dashes(QUANTITIES, rows["quantity"])}
        panel_marks = strips(ranges, hue)
        for quantities, width, size in (
            (["reference"], 1.0, 4),
            (["noise", "machine_line"], 1.5, 0),
            (["distance"], 1.5, 9),
        ):
            part = panel_data[panel_data["quantity"].isin(quantities)]
            dots: dict[str, Any] = (
                {"width": 0, "points": size} if dotted and size else {"width": width}
            )
            panel_marks += curve(part, x, y, hue, **looks, **dots)
        middle = np.sqrt(rows["length"].min() * rows["length"].max())
        return [*panel_marks, *marked_ranges(ranges, middle), *marked_limits(limits)]

    return marks


def marked_ranges(
    ranges: list[dict[str, Any]], middle: float = 0.0, words: bool = True
) -> list[Any]:
    """A line where each range begins, with its words at the bottom, on the side with more room."""
    panel_marks = []
    for place, span in enumerate(ranges):
        looks = {"words": span["words"], "height": HEIGHT - 10 - LINE * place} if words else {}
        looks |= {"side": "right" if span["length"] <= middle else "left", "dash": [1, 0]}
        panel_marks += draw.line_at(
            "x", "length", span["length"], colour=theme.colour(span["series"]), **looks
        )
    return panel_marks


def marked_limits(limits: list[dict[str, Any]], first: int = -8, step: int = -LINE) -> list[Any]:
    """A dotted line at each of the model's own numbers (`model_limits`), its words from `first`
    pixels on (above).
    """
    looks: dict[str, Any] = {"colour": theme.colour("float64"), "dash": [1, 2]}
    return [
        part
        for place, mark in enumerate(limits)
        for part in draw.line_at(
            "x", "length", mark["length"], words=mark["words"], height=first + step * place, **looks
        )
    ]


def strips(ranges: list[dict[str, Any]], hue: Any, opacity: float = 0.14) -> list[Any]:
    """A pale strip over each range of lengths."""
    if not ranges:
        return []
    base = draw.rows(pd.DataFrame(ranges)[["length", "end", "series"]])
    return [base.mark_rect(opacity=opacity).encode(x="length:Q", x2="end:Q", color=hue)]


def distance_chart(result: Collapse, dtype: str, width: int, height: int) -> Chart:
    """The float64 distance of the main pair, and the noise of the difference in `dtype`: what lies
    below it is hidden.

    Pale: the ranges of lengths at which it is hidden. Dotted: the trained length, the sliding
    window, the context.
    """
    frame, pair = vectors_at(frame_of(result), "y"), main_pair(result)
    noise = f"noise of {dtype}"
    names = {"float64_distance": "distance", "pair_noise": noise}
    means: Frame = (
        frame[(frame["pair"] == pair) & (frame["dtype"] == dtype)]
        .groupby("length")[list(names)]
        .mean()
    )
    long = (
        means.reset_index()
        .rename(columns=names)
        .melt(id_vars="length", var_name="series", value_name="value")
    )
    rows, y = log_rows(long, "L2 distance")
    hues = {"distance": theme.INK, noise: theme.colour(dtype)}
    hue = draw.hue("series", hues, columns=2, symbolType="circle", symbolSize=60)
    verdicts = result.verdicts_over_seeds()
    ranges = [
        span | {"series": noise}
        for span in hidden_ranges(verdicts, ["y"], [dtype])
        if span["pair"] == pair
    ]
    layers = [*strips(ranges, hue), *marked_limits(model_limits(result))]
    layers += curve(
        rows, axes.length_axis(rows["length"], "items of the sequence"), y, hue, width=0, points=6
    )
    return axes.themed(draw.layers(*layers, width=width, height=height))
