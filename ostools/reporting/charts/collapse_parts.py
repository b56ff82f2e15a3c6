"""Collapse after every block, and by the part of low precision that hides the pair."""

from functools import partial

import altair as alt
import pandas as pd

from ostools.ground import InputError
from ostools.measure import Collapse, Reading
from ostools.measure.passes.precisions import Precision
from ostools.reporting.charts.collapse import PAIRS, collapse_chart, hidden_ranges, strips
from ostools.reporting.findings import present
from ostools.reporting.findings.answers import task_of
from ostools.reporting.findings.collapse import (
    main_pair,
    overflow_sentence,
    vectors_at,
)
from ostools.reporting.forms import Marks, curve, heat, layers_up, log_colour, log_rows, panel_grid
from ostools.reporting.style import axes, draw, theme
from ostools.results import Chart, Frame, Looks, frame_of

_LAYERS_WIDTH, _STEP, _LEAST = 300, 16, 60
"""Of a panel: its width, the height of a layer, and the least height of all."""
_ZERO = "#d9d9d9"
_RELATIVE = "L2 distance / norm of v^(l)"


def collapse_result_chart(result: Collapse) -> Chart:
    """The curves dtype by dtype; layer by layer where several were measured, as the growth of one
    rounding where one is among the precisions.

    With parts stored in few bits, or more than four dtypes, the precisions side by side.
    """
    names = set(result.frame["dtype"])
    parts = {Precision.of_name(name).part for name in names}
    if len(set(result.frame["layer"])) > 1:
        return growth_chart(result) if "once" in parts else collapse_layers_chart(result)
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


_PAIR = "distance of the pair, float64"
_GROWTH = {
    "float64_distance": _PAIR,
    "noise": "noise in v",
    "pair_noise": "noise in the difference v - v*",
}
_LOOKS = {
    name: (name, dash)
    for name, dash in zip(_GROWTH.values(), ([1, 0], [1.5, 2.5], [6, 3]), strict=True)
}


def growth_chart(result: Collapse) -> Chart:
    """What one rounding becomes, layer by layer, at the shortest and the longest length: the pair's
    float64 distance, and the noise of each dtype in v itself and in the difference, all relative to
    ||v^(l)||. Where the noise of the difference is above the distance, it hides it.
    """
    table: Frame = Reading("residual").of(result.measured(), every_layer=True)
    # Of a pair that is the same in v^(0) the size of v^(0) is not stored.
    table = table[(table["pair"] == main_pair(result)) & (table["relative"] > 0)]
    groups = table.groupby(["dtype", "length", "layer"], as_index=False, sort=False)
    means: Frame = groups[[*_GROWTH, "mean", "relative"]].mean()
    size = means["mean"] / means["relative"]
    parts = [
        means[["length", "layer"]].assign(
            value=means[column] / size,
            quantity=quantity,
            series=means["dtype"] if column != "float64_distance" else _PAIR,
        )
        for column, quantity in _GROWTH.items()
    ]
    rows, y = log_rows(pd.concat(parts, ignore_index=True).drop_duplicates(), "relative to ‖v^(l)‖")
    hues = {name: theme.INK if name == _PAIR else name for name in dict.fromkeys(rows["series"])}
    hue, dash = draw.hue("series", hues), draw.dashes(_LOOKS, rows["quantity"])
    ends = int(rows["layer"].min()), int(rows["layer"].max())
    ticks = axes.whole_ticks(*ends)
    x = alt.X("layer:Q", **axes.linear("layer l", ends, grid=False, format="d", values=ticks))
    panels = [
        draw.panel(curve(of_length, x, y, hue, dash=dash), 300, 220, f"{length} items")
        for length, of_length in rows.groupby("length")
        if length in (rows["length"].min(), rows["length"].max())
    ]
    title = f"What a rounding becomes, layer by layer, {frame_of(result)['task'].iloc[0]}"
    return draw.figure([panels], title, [], color="shared", strokeDash="shared")


def precision_chart(result: Collapse) -> Chart:
    """A panel a part: the pair's float64 distance at y, and each format's noise of the difference;
    pale the ranges of lengths at which it hides the pair.

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
    spans: dict[str, list[Looks]] = {}
    for span in hidden_ranges(result):
        format, part = _split(span["series"])
        if span["pair"] == pair:
            spans.setdefault(PARTS[part], []).append(span | {"series": format})
    panels = {
        str(name): partial(
            _noise_curves, of_part, spans=spans.get(str(name), []), hue=hue, dash=dash
        )
        for name, of_part in rows.groupby("panel", sort=False)
    }
    grid = panel_grid(panels, axes.length_axis(rows["length"]), y, 2, (290, 190))
    notes = present(
        overflow_sentence(result.overflowing()),
        "Pale: the ranges of lengths at which a format hides the pair." if spans else "",
    )
    title = f"Which part of low precision hides the pair, {task_of(result)}"
    return draw.figure(grid, title, notes, color="shared", strokeDash="shared")


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
    rows: Frame, x: alt.X, y: Looks, *, spans: list[Looks], hue: alt.Color, dash: alt.StrokeDash
) -> Marks:
    """The marks of a panel: the pair's distance thick, all else thin."""
    thick = rows["quantity"] == "distance"
    marks = strips(spans, hue) + curve(rows[thick], x, y, hue, dash=dash, width=2.6)
    return marks + curve(rows[~thick], x, y, hue, dash=dash, width=1.3)
