"""Curves: what falls with length (Figures 8 and 9, with fitted laws), retrieval by the position of
a record, and Figure 5, a panel for each of its prompts.
"""

import math
from collections.abc import Mapping
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from ostools.ground import number, title_of
from ostools.paper.figure5 import FIGURE_5_READING, Figure5
from ostools.paper.retrieval import Retrieval
from ostools.paper.synthetic import Figure8, Figure9
from ostools.reporting.charts.collapse import (
    jumps,
    marked_limits,
    marked_ranges,
    model_limits,
    strips,
)
from ostools.reporting.findings import MOST
from ostools.reporting.findings.collapse import overflow_sentence
from ostools.reporting.forms import curve, log_rows, rules
from ostools.reporting.style import axes, draw, theme
from ostools.results import Chart, Column, Frame, frame_of
from ostools.theory.statistics.fits import Law

READINGS = {"vectors": "q, k, v Gaussian", "weights": "weights Gaussian"}
_COLOURS = {"q, k, v Gaussian": "vectors", "weights Gaussian": "weights"}
_COLOURS_9 = {"measured": "vectors", "certified bound": "local"}
_HARDLY = 0.5
"""A law that leaves more than this of the first fitted value is not called convergence, whatever
its rate.
"""
_OURS = (
    "Representation: the whole block of Vaswani et al., 8 heads. Positions are added to queries "
    "and keys (q, k, v Gaussian), or to the stream (weights Gaussian). Norm, range of n, seeds and "
    "bars are ours."
)
_OURS_IN_9 = "The range of n is ours. Every n is the beginning of one sequence a seed."
_MARKS = "Mean over seeds; bars: least to greatest. Thin black lines: laws fitted to the mean."
_LAW = ("rate", "low", "high", "seeds_low", "seeds_high", "level", "falls_to")
_QUANTITIES = {
    "l1": "L1 distance of the last representations",
    "relative": "L2 distance / norm",
    "total_variation": "total variation of the weights",
}


def figure_8_chart(result: Figure8) -> Chart:
    """The distance of the last representations against n, beside it the relative one and the
    weights' total variation; without what is rounding.
    """
    rows, fits = (
        table.assign(series=table["reading"].replace(READINGS))
        for table in (frame_of(result), result.fits)
    )
    rows = rows[rows["relative"] > rows["rounding"]].assign(kind="measured")
    title = "Figure 8: one attention layer, d = 64, sinusoidal positions"
    notes = ["n tokens against the same with the last token copied. " + _MARKS, _OURS]
    panels = [
        _decay_panel(rows, fits[fits["quantity"] == quantity], _COLOURS, words, (310, 240))
        for quantity, words in _QUANTITIES.items()
    ]
    return draw.figure([panels], title, notes, spacing=30, color="shared")


def figure_9_chart(result: Figure9) -> Chart:
    """delta against n, the certified bound, and the law; both axes logarithmic."""
    measured = frame_of(result).assign(series="measured", kind="measured")
    names = {"series": "certified bound", "kind": "certified", "delta": measured["bound"]}
    rows = pd.concat([measured, measured.assign(**names)], ignore_index=True)
    fits = result.fits.assign(series="measured")
    panel = _decay_panel(rows, fits, _COLOURS_9, "delta = sum |y − y*|", (520, 300))
    noisy, noise = (result.provenance.parameters[name] for name in ("noisy", "noise"))
    title = f"Figure 9: total variation of a softmax, noise to {noise:g} on the first {noisy}"
    return draw.figure([[panel]], title, [_MARKS, _OURS_IN_9])


def figure_8_findings(result: Figure8) -> list[str]:
    """The law that each curve follows, and which representation this is."""
    names = result.fits["reading"] + " " + result.fits["quantity"]
    return [*_laws(result.fits, names)[: MOST - 1], _OURS]


def figure_9_findings(result: Figure9) -> list[str]:
    """The law that each curve follows, and from where on it was fitted."""
    return [*_laws(result.fits, result.fits["quantity"]), _OURS_IN_9]


def _laws(fits: Frame, names: Column) -> list[str]:
    return [
        f"{name}: {law_words(fit)}."
        for name, fit in zip(names, fits.to_dict("records"), strict=True)
    ]


def law_words(fit: Mapping[str, Any]) -> str:
    """One row of `ostools.paper.synthetic.decay_fits` as a part of a sentence."""
    where = f"from n = {fit['fitted_from']:,}"
    if fit["law"] == "none":
        return f"{fit['verdict']} {where} ({fit['used']} lengths)"
    rate, low, high, seeds_low, seeds_high, level, falls_to = (number(fit[name]) for name in _LAW)
    form = "e^(-r n), r" if fit["law"].startswith("exponential") else "n^-k, k"
    seeds = "" if pd.isna(fit["seeds_low"]) else f", [{seeds_low}, {seeds_high}] over seeds"
    to = f", to a level of {level}" if fit["level"] > 0 else ""
    law = f"{form} = {rate} [{low}, {high}] along the mean curve{seeds}{to}"
    if fit["falls_to"] > _HARDLY:
        return f"no convergence {where}: to {falls_to} of the first value by {law}"
    unsure = "undecided between laws, best: " if fit["verdict"] == "undecided" else ""
    return f"{unsure}{law}, {where}"


def _decay_panel(
    rows: Frame, fits: Frame, colours: dict[str, str], title: str, size: tuple[int, int]
) -> alt.LayerChart:
    """Means over seeds of the fitted quantity as points, with bars from least to greatest; bounds
    as dashed lines, laws as thin black ones and in words below.
    """
    groups = rows.groupby(["series", "kind", "length"], as_index=False, sort=False)
    spread = groups[fits["quantity"].iloc[0]].agg(["mean", "min", "max"])
    names = {"mean": "value", "min": "low", "max": "high"}
    rows, y = log_rows(spread.rename(columns=names), title, ("low", "high"))
    first, last = int(rows["length"].min()), int(rows["length"].max())
    ticks = [10**power for power in range(8) if first <= 10**power <= last]
    looks: theme.Looks = {"values": ticks} if len(ticks) > 1 else {}
    x = axes.length_axis(rows["length"], "n", log=True, format=",d", **looks)
    hue, measured = draw.hue("series", colours, symbolStrokeWidth=3), rows["kind"] == "measured"
    plain = rows.drop(columns=["low", "high"])
    marks = rules(rows[measured & (rows["high"] > rows["low"])], x, hue)
    marks += curve(plain[measured], x, y, hue, width=0, points=22)
    marks += curve(plain[~measured], x, y, hue, width=1.3, strokeDash=theme.DASHES["certified"])
    marks += curve(_law_curves(rows, fits), x, y, alt.value(theme.INK), width=1.0)
    below: theme.Looks = {"orient": "bottom", "fontSize": 10, "offset": 4, "anchor": "start"}
    # No wider than a panel.
    words = "\n".join(_laws(fits, fits["series"])).replace(" along", "\nalong")
    return draw.panel(marks, *size, draw.heading(words.split("\n"), **below))


def _law_curves(rows: Frame, fits: Frame) -> Frame:
    """The fitted law of each series where it was fitted."""
    parts = [pd.DataFrame()]
    for fit in fits[fits["law"] != "none"].to_dict("records"):
        lengths = np.unique(rows[rows["length"] >= fit["fitted_from"]]["length"])
        numbers = (fit[name] for name in ("rate", "low", "high", "log_amplitude", "level"))
        values = Law(fit["law"], *numbers, bic=math.nan)(lengths.astype(float))
        columns = {"length": lengths, "value": values, "series": fit["series"], "kind": "fitted"}
        parts.append(pd.DataFrame(columns))
    return pd.concat(parts)


_WIDTH, _HEIGHT = 540, 130
_ENDS = {"log_probability": "log p (nats)", "log_sensitivity": "log sensitivity (natural)"}
_TARGET_RECORD, _OTHER_TOKENS = "tokens of the wanted record", "all other tokens"


def retrieval_chart(result: Retrieval) -> Chart:
    """Two panels over one axis of positions: log p of the right answer, and the mean norm over the
    wanted record's tokens and over all others; means over seeds.
    """
    frame = frame_of(result)
    axes.require_finite(frame["sensitivity_mean"], "a retrieval run")
    names = {"sensitivity_mean": _TARGET_RECORD, "sensitivity_others": _OTHER_TOKENS}
    means = frame.groupby("position", as_index=False)[[*names, "log_probability"]].mean()
    norms = means.rename(columns=names).melt("position", [*names.values()], "series")
    likely = means.assign(value=means["log_probability"], series=_TARGET_RECORD)
    norm_words = f"mean {result.provenance.parameters['norm']} norm"
    rows, y = log_rows(norms, norm_words)
    log_p = axes.linear("log p(right answer), nats", tickCount=4) | {"scale": alt.Scale(zero=False)}
    length = int(frame["length"].iloc[0])
    looks: theme.Looks = {"values": sorted({*frame["position"].tolist()})}
    words = f"position of the wanted record (0 to {length - 1})"
    x = axes.length_axis(frame["position"], words, "position", 10, log=False, **looks)
    hue = draw.hue(
        "series", {_TARGET_RECORD: "full", _OTHER_TOKENS: "float64"}, symbolStrokeWidth=3
    )
    panels = [
        [draw.panel(curve(data, across, up, hue, width=2.2, points=30), _WIDTH, _HEIGHT)]
        for data, across, up in ((likely, axes.quiet(x), log_p), (rows, x, y))
    ]
    title = f"Retrieving one of {length} records on {title_of(result.provenance.model)}"
    return draw.figure(panels, title, retrieval_findings(result), between=10)


def retrieval_findings(result: Retrieval) -> list[str]:
    """How often the value was found, how the run was made, and whether the ends lie above what is
    between.
    """
    frame, parameters = frame_of(result), result.provenance.parameters
    ends = [
        f"{words}, at an end less the mean of the positions between: {'; '.join(ends)}."
        for quantity, words in _ENDS.items()
        if (ends := result.ends_words(quantity))
    ]
    return [
        f"{int(frame['found'].sum())} of {len(frame)} answers name the wanted value (seeds: "
        f"{frame['seed'].nunique()}); within a seed only the wanted record moves.",
        f"Sensitivity: mean norm of d y_n / d v_i^(0) ({parameters['linearisation']} Jacobian) "
        f"over tokens i; method: {', '.join(frame['method'].unique())}.",
        *ends,
    ]


_WIDTH_5, _HEIGHT_5 = 330, 190
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
    "Hidden: the float64 distance is below the rounding noise of the difference, both as drawn. "
    "Strip: a range of lengths; (k of m): at k of its m lengths the pair is hidden.",
)


def figure_5_chart(result: Figure5) -> Chart:
    """Mean over heads with a band from the least to the greatest head, dtype by dtype, on one log
    axis for all panels.

    A pale strip covers each range of lengths at which a dtype hides the pair: in every seed, by the
    quantity that is drawn. Dotted lines stand where the model's training ends, and where the prompt
    reaches a sliding window or fills the context.
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
        panels[pair == "theorem"].append(_figure_5_panel(result, group, y, low))
    rows = [*draw.in_rows(panels[True], 2), *([panel] for panel in panels[False])]
    model = title_of(result.provenance.model)
    title = f"Figure 5 on {model}: L∞ distance at v^(L) of v and v*, its last token once more"
    overflow = set(result.verdicts["dtype"]) - set(frame["dtype"])
    notes = [*result.deviations, *_NOTES, *filter(None, [overflow_sentence(sorted(overflow))])]
    return draw.figure(rows, title, notes, spacing=28, between=22)


def _figure_5_panel(result: Figure5, group: Frame, y: theme.Looks, low: float) -> alt.LayerChart:
    """Bands, curves and faintly the floors; the first dtype is the broadest, for the others lie on
    top of it.
    """
    panel, pair = str(group["panel"].iloc[0]), str(group["pair"].iloc[0])
    x = axes.length_axis(frame_of(result)["length"], "length n (digits)")
    dtypes, rows = list(dict.fromkeys(group["dtype"])), _rows_of_lines(group, low)
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
    name, lines = f"({panel}) {_ONE_MORE_DIGIT}", [f"“{prompt}” (n = 6)"]
    if pair == "theorem":
        name, lines = f"({panel}) {_WORDS[panel]}", [*lines, _where(verdicts)]
    return draw.panel(marks, _WIDTH_5, _HEIGHT_5, draw.heading(name, lines, fontWeight="bold"))


def _rows_of_lines(group: Frame, low: float) -> Frame:
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


def _where(verdicts: Mapping[str, Any]) -> str:
    """The ranges of lengths at which each dtype hides the pair, in words."""
    places = "; ".join(f"{dtype} {verdict.where}" for dtype, verdict in verdicts.items())
    return f"hidden n: {places}"


def figure_5_findings(result: Figure5) -> list[str]:
    """The ranges of lengths at which each dtype hides the theorem's pair, by panel; then how the
    figure was made.
    """
    sentences = [
        f"({panel}) {_WORDS[panel]}: {_where(_hidden(result, panel, 'theorem'))}."
        for panel in result.curves
    ]
    return [" ".join(sentences), *result.deviations]
