"""Collapse after every block, and by the part of low precision that hides the pair."""

from __future__ import annotations

from functools import partial

import altair as alt
import pandas as pd

from ostools.ground import InputError
from ostools.measure import Collapse, Reading
from ostools.measure.passes.precisions import Precision
from ostools.reporting.charts.collapse import PAIRS, collapse_chart
from ostools.reporting.findings import present
from ostools.reporting.findings.answers import task_of
from ostools.reporting.findings.collapse import (
    main_pair,
    overflow_sentence,
    vectors_at,
    verdicts_at_y,
)
from ostools.reporting.forms import Marks, curve, heat, layers_up, log_colour, log_rows, panel_grid
from ostools.reporting.style import axes, draw
from ostools.results import Chart, Frame, Looks, frame_of

_LAYERS_WIDTH, _STEP, _LEAST = 300, 16, 60
"""Of a panel: its width, the height of a layer, and the least height of all."""
_ZERO = "#d9d9d9"
_RELATIVE = "L2 distance / norm of v^(l)"


def collapse_result_chart(result: Collapse) -> Chart:
    """The curves dtype by dtype; layer by layer where several were measured.

    With parts stored in few bits, or more than four dtypes, the precisions side by side.
    """
    names = set(result.frame["dtype"])
    parts = {Precision.of_name(name).part for name in names}
    if len(set(result.frame["layer"])) > 1:
        return collapse_layers_chart(result)
    return precision_chart(result) if len(names) > 4 or parts != {None} else collapse_chart(result)


def collapse_layers_chart(result: Collapse) -> Chart:
    """||v^(l) - v*^(l)||_2 by layer and length, the mean over seeds, a panel per dtype and kind of
    pair.

    The colour is the distance relative to the norm of v^(l), which grows from layer to layer. Pale
    where the float64 distance lies below the rounding noise of the difference in that dtype at that
    layer, grey where the two are the same numbers: at the embedding, where nothing but a position
    can tell them apart.
    """
    frame: Frame = Reading("residual").of(result.measured(), every_layer=True)
    keys = ["pair", "dtype", "layer", "length"]
    numbers = ["relative", "float64_distance", "pair_noise"]
    cells = frame.groupby(keys, as_index=False, sort=False)[numbers].mean()
    cells = cells.assign(value=cells["relative"])
    axes.require_finite(cells["value"], "a heat map of layers")
    colour = log_colour(cells["value"], _RELATIVE)
    lengths = alt.Axis(labelAngle=0, ticks=False, labelOverlap="greedy", labelSeparation=4)
    x, panels = alt.X("length:O", title=axes.LENGTH, axis=lengths), []
    for (pair, dtype), group in cells.groupby(["pair", "dtype"], sort=False):
        same = group["value"] == 0
        hidden = group[(group["float64_distance"] < group["pair_noise"]) & ~same]
        pale = draw.rows(hidden).mark_rect(color="white", opacity=0.62)
        marks = [
            *heat(group[same], x, layers_up(), alt.value(_ZERO)),
            *heat(group[~same], x, layers_up(), colour),
            pale.encode(x=x, y=layers_up()),
        ]
        height = max(_LEAST, _STEP * group["layer"].nunique())
        panels.append(draw.panel(marks, _LAYERS_WIDTH, height, f"{dtype}{PAIRS[str(pair)]}"))
    notes = [
        f"{_RELATIVE}. Layer 0: the embedding; {int(frame['layer'].max())}: v^(L), after the last "
        "block, before the final norm.",
        "Pale: the float64 distance is below the rounding noise of the difference. Grey: exactly "
        "0, the same numbers in both.",
    ]
    title = f"How far v and v* are apart after each block, {task_of(result)}"
    return draw.figure(draw.in_rows(panels, 2), title, notes, color="shared")


PARTS = {
    "cast": "whole model cast",
    "eager": "whole model cast, attention's scores rounded",
    "weights": "weights stored, float32 arithmetic",
    "residual": "residual stream stored, float32 arithmetic",
    "once": "v^(0) rounded once, float32 arithmetic",
    "kv": "keys and values stored, float32 arithmetic",
}
"""What is rounded, in words, by the part of a precision's name."""
_QUANTITIES: dict[str, tuple[str, list[float]]] = {
    "distance": ("thick: float64 distance of the pair, weights as given", [1, 0]),
    "stored": ("the same with the weights so stored", [7, 3]),
    "noise": ("rounding noise of the difference", [1, 0]),
}


def precision_chart(result: Collapse) -> Chart:
    """Above, a panel a part: the pair's float64 distance at y, and each format's noise of the
    difference. Below, the hidden ranges.

    Where the noise of the difference is above the distance, that precision hides the pair.
    """
    frame, pair = vectors_at(result.measured(), "y"), main_pair(result)
    frame = frame[(frame["pair"] == pair) & (frame["dtype"] != "float64")]
    if frame.empty:
        raise InputError("a chart of precisions: expected another dtype than float64, found none")
    rows, y = log_rows(_precision_rows(frame), "L2 distance")
    formats = sorted(set(rows["series"]))
    hue = draw.hue("series", formats, title="format", columns=len(formats), symbolStrokeWidth=4)
    dash = draw.dashes(_QUANTITIES, rows["quantity"])
    panels = {
        name: partial(_noise_curves, of_part, hue=hue, dash=dash)
        for name, of_part in rows.groupby("panel", sort=False)
    }
    grid = panel_grid(panels, axes.length_axis(rows["length"]), y, 2, (290, 190))
    curves = [alt.hconcat(*row, spacing=22) for row in grid]
    above = alt.vconcat(*curves, spacing=22).resolve_scale(color="shared", strokeDash="shared")
    notes = present(overflow_sentence(result.overflowing()))
    title = f"Which part of low precision hides the pair, {task_of(result)}"
    scales: Looks = {"color": "shared", "strokeDash": "independent"}
    return draw.figure([[above], [_ranges(result, hue)]], title, notes, between=26, **scales)


def _split(name: str) -> tuple[str, str]:
    """The format and the part of a precision's name."""
    format, dash, part = name.partition("-")
    return format, part if dash else "cast"


def _precision_rows(frame: Frame) -> Frame:
    """The distance and the noises against length, the mean over seeds; every panel has the distance
    of the weights as given.
    """
    keys = ["dtype", "weights", "length"]
    numbers = ["pair_noise", "float64_distance", "given_distance"]
    means = frame.groupby(keys, as_index=False, sort=False)[numbers].mean()
    names = means["dtype"].map(_split)
    means = means.assign(series=names.str[0], panel=names.str[1].map(PARTS))
    noise = means.assign(value=means["pair_noise"], quantity="noise")
    # What each range was read from: the float64 distance of the weights as that precision stores
    # them.
    stored = means[means["weights"] != "given"]
    stored = stored.assign(value=stored["float64_distance"], quantity="stored")
    as_given = means.drop_duplicates(["panel", "length"])
    as_given = as_given.assign(
        value=as_given["given_distance"], series="float64", quantity="distance"
    )
    has_noise = noise.groupby("dtype")["value"].transform("max") > 0
    rows: Frame = pd.concat([noise[has_noise], stored, as_given], ignore_index=True)
    return rows.drop(columns=["dtype", "weights", *numbers])


def _noise_curves(
    rows: Frame, x: alt.X, y: Looks, *, hue: alt.Color, dash: alt.StrokeDash
) -> Marks:
    """The marks of a panel: the pair's distance thick, all else thin."""
    thick = rows["quantity"] == "distance"
    marks = curve(rows[thick], x, y, hue, dash=dash, width=2.6)
    return marks + curve(rows[~thick], x, y, hue, dash=dash, width=1.3)


def _ranges(result: Collapse, hue: alt.Color) -> alt.LayerChart:
    """The ranges of lengths at which each precision hides the pair; its row is empty where there is
    none.
    """
    verdicts = verdicts_at_y(result)
    spans = [
        (" ".join(_split(name)), _split(name)[0], verdict.words, span.first, span.last)
        for name, verdict in verdicts.items()
        for span in verdict.ranges
    ]
    data: Frame = pd.DataFrame(spans, columns=["precision", "series", "status", "length", "to"])
    title = "lengths n at which the pair is hidden at y (empty: in no range)"
    ends = pd.Series([1, frame_of(result)["length"].max()])
    places: Looks = {
        "x": axes.length_axis(ends, title, log=True, grid=True),
        "y": axes.names(
            [" ".join(_split(name)) for name in verdicts], field="precision", grid=True
        ),
    }
    rule = draw.rows(data).mark_rule(strokeWidth=5, strokeCap="square")
    marks = rule.encode(x2="to:Q", color=hue, tooltip=draw.tooltips(data), **places)
    return draw.panel([marks], 600, alt.Step(18))
