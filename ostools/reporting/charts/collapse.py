"""Collapse against length: how far two last-token representations are apart, dtype by dtype."""

from collections.abc import Callable

import altair as alt
import numpy as np
import pandas as pd

from ostools.ground import InputError
from ostools.measure import Collapse, Reading
from ostools.measure.collapse.verdicts import HiddenRange
from ostools.reporting.findings import present
from ostools.reporting.findings.answers import task_of
from ostools.reporting.findings.collapse import (
    longest_trained,
    main_pair,
    overflow_sentence,
    vectors_at,
)
from ostools.reporting.forms import BAND, Marks, curve, log_rows, panel_grid
from ostools.reporting.style import axes, draw, theme
from ostools.results import Chart, Column, Frame, Looks, frame_of

WIDTH, HEIGHT, LINE = 240, 190, 13
ONE_WIDTH, ONE_HEIGHT = 520, 280
"""Pixels of the only panel of a chart."""
PAIRS = {
    "theorem": "",
    "task": ": n and n + 1 items (no theorem)",
    "one-more-digit": ": one more digit (no theorem)",
}
"""What a panel's title adds for a pair that is not the theorem's."""
QUANTITIES: dict[str, tuple[str, list[float]]] = {
    "distance": ("measured distance of the pair (dots where it jumps)", [1, 0]),
    "reference": ("the same in float64, in grey: what is read", [5, 1.5]),
    "noise": ("rounding noise of the difference in this dtype", [1.5, 2.5]),
    "machine_line": ("machine line: one representable step", [7, 4]),
}
"""What a collapse chart draws: the legend's words and the dash."""
JUMPS = 0.08
"""A curve whose neighbours differ by more than 10^JUMPS (20%) in the median is drawn as dots: a
line would only fill a band.
"""


def collapse_chart(result: Collapse) -> Chart:
    """L2 distance between the two last-token representations y against length, a panel a dtype and
    kind of pair.

    Each panel holds the measured distance, the rounding noise of the difference in that dtype and
    its machine line, the float64 distance beside them, and pale the ranges of lengths at which the
    pair is hidden in every seed. Dotted lines stand at the longest trained length, and where the
    prompt reaches a sliding window or fills the context. Seeds are shown by their mean, with a band
    from the least to the greatest. Raises `InputError` where every dtype overflows.
    """
    table = result.measured()
    if table.empty:
        raise InputError(f"a collapse chart: {overflow_sentence(result.overflowing())}")
    rows, y = log_rows(_collapse_rows(Reading("y").of(table)), "L2 distance", ("low", "high"))
    ranges, limits = hidden_ranges(result), model_limits(result)
    dtypes = list(dict.fromkeys(table["dtype"]))
    names = [_panel(dtype, pair) for pair in PAIRS for dtype in dtypes]
    panels = {
        name: _curves(rows, name, [span for span in ranges if span["panel"] == name], limits)
        for name in names
        if (rows["panel"] == name).any()
    }
    x, notes = axes.length_axis(rows["length"]), present(overflow_sentence(result.overflowing()))
    title = f"Distance of the last-token representations, {task_of(result)}"
    size = (WIDTH, HEIGHT) if len(panels) > 1 else (ONE_WIDTH, ONE_HEIGHT)
    grid = panel_grid(panels, x, y, len(dtypes), size)
    return draw.figure(grid, title, notes, color="shared", strokeDash="shared")


def _panel(dtype: str, pair: str) -> str:
    return f"y, {dtype}{PAIRS[pair]}"


def _collapse_rows(frame: Frame) -> Frame:
    """One row per point drawn: panel, length, quantity, series (the dtype that gives the colour),
    value, and its band.
    """
    curves = frame.groupby(["pair", "length", "dtype"], as_index=False, sort=False, observed=True)
    measured = curves.agg(
        distance=("mean", "mean"),
        low=("minimum", "min"),
        high=("maximum", "max"),
        noise=("pair_noise", "mean"),
        machine_line=("machine_line", "mean"),
        reference=("float64_distance", "mean"),
    )
    # A band is drawn where there is one, if its lower end can stand on the log axis.
    wide = (measured["high"] > measured["low"]) & (measured["low"] > 0)
    measured[["low", "high"]] = measured[["low", "high"]].where(wide)
    panels = map(_panel, measured["dtype"], measured["pair"])
    measured = measured.assign(panel=list(panels), series=measured["dtype"])
    ids = ["panel", "length", "series", "low", "high"]
    rows: Frame = measured.melt(ids, list(QUANTITIES), "quantity")
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


def hidden_ranges(result: Collapse) -> list[Looks]:
    """Each range of every panel: where it begins and ends, its dtype, its words."""
    return [
        {"panel": _panel(dtype, pair), "pair": pair, "series": dtype}
        | {"length": span.first, "end": span.last, "words": _range_words(span)}
        for (pair, dtype, site, _), verdict in result.verdicts_over_seeds().items()
        if site == "y"
        for span in verdict.ranges
    ]


def _range_words(span: HiddenRange) -> str:
    end = "" if span.open else f" to {span.last}"
    return f"hidden from n = {span.first}{end} ({span.lengths_tried - span.hidden} holes)"


def model_limits(result: Collapse) -> list[Looks]:
    """Where along the lengths the model's own numbers lie, with words: the trained length, a
    sliding window, the context.
    """
    limits = result.provenance.parameters.get("limits", {})
    tokens = frame_of(result).groupby("length")["tokens"].min().sort_index()
    lengths, trained = [*map(int, tokens.index)], longest_trained(result)
    places = {
        f"window of {window} tokens": [n for n in lengths if tokens[n] >= window][:1]
        for window in limits.get("sliding_windows", ())
    }
    if trained is not None and trained < lengths[-1]:
        places[f"trained to n = {trained}"] = [n for n in lengths if n <= trained][-1:]
    if limits.get("context") and tokens[lengths[-1]] + 1 >= limits["context"]:
        places[f"context of {limits['context']} tokens"] = lengths[-1:]
    return [
        {"length": place, "words": words}
        for words, of_words in places.items()
        for place in of_words
        if place > lengths[0]
    ]


def _curves(
    rows: Frame, name: str, ranges: list[Looks], limits: list[Looks]
) -> Callable[[alt.X, Looks], Marks]:
    """The marks of a panel. The reference lies under the dtype's own marks, and is thinner."""
    names, panel_data = list(dict.fromkeys(rows["series"])), rows[rows["panel"] == name]
    of_quantity = {str(name): part for name, part in panel_data.groupby("quantity")}
    dtypes = rows.loc[rows["quantity"] == "distance", "series"].unique().tolist()
    hue = draw.hue(
        "series", names, title="dtype", columns=len(names), symbolStrokeWidth=4, values=dtypes
    )
    dash = draw.dashes(QUANTITIES, rows["quantity"])
    dotted = jumps(of_quantity["distance"].sort_values("length")["value"])
    middle = np.sqrt(rows["length"].min() * rows["length"].max())

    def marks(x: alt.X, y: Looks) -> Marks:
        panel_marks = strips(ranges, hue)
        for quantity, width, size in (
            ("reference", 1.0, 4),
            ("noise", 1.5, 0),
            ("machine_line", 1.5, 0),
            ("distance", 1.5, 9),
        ):
            dots: Looks = {"width": 0, "points": size} if dotted and size else {"width": width}
            part = of_quantity.get(quantity, panel_data[:0])
            panel_marks += curve(part, x, y, hue, dash=dash, bands=[BAND], **dots)
        return [*panel_marks, *marked_ranges(ranges, middle), *marked_limits(limits)]

    return marks


def marked_ranges(ranges: list[Looks], middle: float = 0.0, words: bool = True) -> Marks:
    """A line where each range begins, with its words at the top, on the side with more room."""
    panel_marks: Marks = []
    for place, span in enumerate(ranges):
        looks = {"words": span["words"], "height": 10 + LINE * place} if words else {}
        looks |= {"side": "right" if span["length"] <= middle else "left", "dash": [1, 0]}
        looks |= {"colour": theme.colour(span["series"])}
        panel_marks += draw.line_at("x", "length", span["length"], **looks)
    return panel_marks


def marked_limits(limits: list[Looks], first: int = -8, step: int = -LINE) -> Marks:
    """A dotted line at each of the model's own numbers (`model_limits`), its words from `first`
    pixels on (above).
    """
    panel_marks: Marks = []
    for place, limit in enumerate(limits):
        looks: Looks = {"words": limit["words"], "height": first + step * place, "dash": [1, 2]}
        looks |= {"colour": theme.colour("float64")}
        panel_marks += draw.line_at("x", "length", limit["length"], **looks)
    return panel_marks


def strips(ranges: list[Looks], hue: alt.Color, opacity: float = 0.14) -> Marks:
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
    frame = frame[(frame["pair"] == pair) & (frame["dtype"] == dtype)].rename(columns=names)
    means: Frame = frame.groupby("length")[[*names.values()]].mean().reset_index()
    rows, y = log_rows(means.melt("length", var_name="series"), "L2 distance")
    hues = {"distance": theme.INK, noise: theme.colour(dtype)}
    hue = draw.hue("series", hues, columns=2, symbolType="circle", symbolSize=60)
    spans = [span for span in hidden_ranges(result) if span["panel"] == _panel(dtype, pair)]
    ranges = [span | {"series": noise} for span in spans]
    x = axes.length_axis(rows["length"], "items of the sequence")
    marks = strips(ranges, hue) + marked_limits(model_limits(result))
    marks += curve(rows, x, y, hue, width=0, points=6)
    return draw.panel(marks, width, height)
