"""What falls with length, Figures 8 and 9, with fitted laws; and retrieval by the position of a
record.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from ostools.ground.words import number, title_of
from ostools.paper.retrieval import Retrieval
from ostools.paper.synthetic import Figure8, Figure9
from ostools.reporting.findings import MOST
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
    frame, fits = (
        table.assign(series=table["reading"].replace(READINGS))
        for table in (frame_of(result), result.fits)
    )
    frame = frame[frame["relative"] > frame["rounding"]]
    panels = []
    for quantity, words in _QUANTITIES.items():
        laws = fits[fits["quantity"] == quantity]
        panels.append(_decay_panel(_spread(frame, quantity), laws, _COLOURS, words, (310, 240)))
    title = "Figure 8: one attention layer, d = 64, sinusoidal positions"
    notes = ["n tokens against the same with the last token copied. " + _MARKS, _OURS]
    return draw.figure([panels], title, notes, spacing=30, color="shared")


def figure_9_chart(result: Figure9) -> Chart:
    """delta against n, the certified bound, and the law; both axes logarithmic."""
    frame, fits = frame_of(result), result.fits.assign(series="measured")
    measured = _spread(frame.assign(series="measured"), "delta")
    bound = _spread(frame.assign(series="certified bound"), "bound").assign(kind="certified")
    rows = pd.concat([measured, bound], ignore_index=True)
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


def _spread(frame: Frame, quantity: str) -> Frame:
    """Mean, least and greatest over seeds of each series, by length."""
    groups = frame.groupby(["series", "length"], as_index=False, sort=False)
    spread = groups[quantity].agg(["mean", "min", "max"])
    names = {"mean": "value", "min": "low", "max": "high"}
    return spread.rename(columns=names).assign(kind="measured")


def _decay_panel(
    rows: Frame, fits: Frame, colours: dict[str, str], title: str, size: tuple[int, int]
) -> alt.LayerChart:
    """Means as points with bars from least to greatest over seeds, bounds as dashed lines, laws as
    thin black ones and in words below.
    """
    rows, y = log_rows(rows, title, ("low", "high"))
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
    norms = [_means(frame, column, name) for column, name in names.items()]
    norm_words = f"mean {result.provenance.parameters['norm']} norm"
    rows, y = log_rows(pd.concat(norms, ignore_index=True), norm_words)
    likely = _means(frame, "log_probability", _TARGET_RECORD)
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


def _means(frame: Frame, column: str, name: str) -> Frame:
    means = frame.groupby("position", as_index=False)[column].mean()
    return means.rename(columns={column: "value"}).assign(series=name)
