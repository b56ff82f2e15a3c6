"""What falls with length: Figures 8 and 9, with fitted laws."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from ostools.ground.words import number
from ostools.paper.synthetic import Figure8, Figure9
from ostools.reporting.findings import MOST, first_few
from ostools.reporting.forms import curve, log_rows, rules
from ostools.reporting.style import axes, draw, theme
from ostools.results import Chart, Frame, frame_of
from ostools.theory.statistics.fits import Law

READINGS = {"vectors": "q, k, v Gaussian", "weights": "weights Gaussian"}
_PLACES = {
    "vectors": "with q, k, v Gaussian to queries and keys",
    "weights": "with weights Gaussian to the tokens, and so to the stream",
}
_BAND_ENDS = ("low", "high")
_HARDLY = 0.5
"""A law that leaves more than this of the first fitted value is not called convergence, whatever
its rate.
"""
_OURS = (
    "Norm, range of n, seeds and bars are ours, as the paper does not name them (those of C.3 are "
    "Figure 9's)."
)
_OURS_IN_9 = (
    "The range of n is ours, as the paper does not name it. Every n is the beginning of one "
    "sequence a seed."
)
_COLOURS = {"vectors": "vectors", "weights": "weights", "delta": "vectors", "bound": "local"}
_QUANTITIES = {
    "l1": "L1 distance of the last representations",
    "relative": "L2 distance / norm",
    "total_variation": "total variation of the weights",
}


def figure_9_chart(result: Figure9) -> Chart:
    """delta against n, the certified bound, and the law; both axes logarithmic."""
    frame = frame_of(result)
    measured = _spread(frame, "delta").assign(series="measured", kind="measured")
    bound = _spread(frame, "bound").assign(series="certified bound", kind="certified")
    colours = {"measured": _COLOURS["delta"], "certified bound": _COLOURS["bound"]}
    rows = pd.concat([measured, bound], ignore_index=True)
    parameters = result.provenance.parameters
    text = (
        f"Figure 9: total variation of a softmax, noise to {parameters['noise']:g} on the first "
        f"{parameters['noisy']}"
    )
    title = "delta = sum |y − y*|"
    panel = _decay_panel(rows, result.fits, colours, title, (520, 300))
    return draw.figure([[panel]], text, [_seeds(frame), _OURS_IN_9])


def figure_8_findings(result: Figure8) -> list[str]:
    """The law that each curve follows, and which representation this is."""
    laws = [
        f"{'; '.join(_laws(fits, 'reading', 'quantity'))}."
        for _, fits in result.fits.groupby("quantity", sort=False)
    ]
    return [*first_few(laws, MOST - 1), " ".join(figure_8_notes(result))]


def figure_9_findings(result: Figure9) -> list[str]:
    """The law that each curve follows, and from where on it was fitted."""
    return [*first_few(_laws(result.fits, "quantity"), MOST - 1), _OURS_IN_9]


def _laws(fits: Frame, *keys: str) -> list[str]:
    return [
        f"{' '.join(str(fit[key]) for key in keys)}: {law_words(fit)}"
        for fit in fits.to_dict("records")
    ]


def figure_8_chart(result: Figure8) -> Chart:
    """The distance of the last representations against n, beside it the relative one and the
    weights' total variation.
    """
    frame = _without_rounding(frame_of(result))
    readings = [reading for reading in READINGS if (frame["reading"] == reading).any()]
    colours = {READINGS[reading]: _COLOURS[reading] for reading in readings}
    panels = []
    for quantity, words in _QUANTITIES.items():
        parts = [
            _spread(frame[frame["reading"] == reading], quantity).assign(
                series=READINGS[reading], kind="measured"
            )
            for reading in readings
        ]
        fits: Frame = result.fits[result.fits["quantity"] == quantity]
        fits = fits.assign(series=fits["reading"].map(READINGS))
        panels.append(
            _decay_panel(pd.concat(parts, ignore_index=True), fits, colours, words, (310, 240))
        )
    text = (
        f"Figure 8: one attention layer, d = {result.provenance.parameters['d']}, sinusoidal "
        "positions"
    )
    pairs = "A sequence of n tokens against the same with its last token copied. "
    means = frame.groupby(["reading", "length"])[list(_QUANTITIES)].mean()
    notes = [axes.ROUNDING_NOTE] if bool((means == 0).to_numpy().any()) else []
    block, places = figure_8_notes(result)
    all_notes = [pairs + _seeds(frame), block, " ".join([places, *notes])]
    return draw.figure([panels], text, all_notes, spacing=30, color="shared")


def figure_8_notes(result: Figure8) -> list[str]:
    """Which representation and which reading of C.3 this is, and what is not the paper's."""
    parameters = result.provenance.parameters
    places = "; ".join(_PLACES[str(reading)] for reading in parameters["readings"])
    block = f"the whole block of Vaswani et al., {parameters['n_heads']} heads"
    return [f"Representation: {block}. {_OURS}", f"Positions are added {places}."]


def law_words(fit: Mapping[str, Any]) -> str:
    """One row of `ostools.paper.synthetic.decay_fits` as a part of a sentence."""
    where = f"from n = {fit['fitted_from']:,}"
    if fit["verdict"] == "too few":
        return f"{fit['used']} lengths {where}, too few to fit"
    if pd.isna(fit["rate"]):
        return f"decay not shown {where}"
    spread = (
        f"; {number(fit['seeds_low'])} to {number(fit['seeds_high'])} over seeds"
        if pd.notna(fit["seeds_low"])
        else ""
    )
    rate = (
        f"{number(fit['rate'])} (95%: {number(fit['low'])} to {number(fit['high'])} along the mean "
        f"curve{spread})"
    )
    law = f"e^(-r n), r = {rate}" if fit["law"].startswith("exponential") else f"n^-k, k = {rate}"
    level = f"falls to a level of {number(fit['level'])} by " if fit["level"] > 0 else ""
    unsure = "undecided between laws, best: " if fit["verdict"] == "undecided" else ""
    if fit["falls_to"] > _HARDLY:
        return (
            f"no convergence {where}: to {number(fit['falls_to'])} of the first value by "
            f"{level}{law}"
        )
    return f"{unsure}{level}{law}, {where}"


def _below(fits: Frame) -> alt.TitleParams:
    """The fitted laws in words, under their panel."""
    words = [
        f"{fit['series'] + ': ' if 'series' in fit else ''}{law_words(fit)}"
        for fit in fits.to_dict("records")
    ]
    words = [
        line for sentence in words for line in sentence.replace(" (95%", "\n(95%").split("\n")
    ]  # no wider than a panel
    looks: theme.Looks = {"orient": "bottom", "fontSize": 10, "offset": 4, "anchor": "start"}
    return draw.heading(words, **looks)


def _seeds(frame: Frame) -> str:
    seeds = frame["seed"].nunique()
    bars = "; bars: least to greatest" if seeds > 1 else ""
    return (
        f"Mean over {seeds} seed{'s' if seeds > 1 else ''}{bars}. Thin black lines: laws fitted to "
        "the mean."
    )


def _without_rounding(frame: Frame) -> Frame:
    """Distances that are float64's rounding at every seed of their reading and length, as the 0
    that they are up to it.
    """
    measurable = (
        (frame["relative"] > frame["rounding"])
        .groupby([frame["reading"], frame["length"]])
        .transform("any")
    )
    return frame.assign(
        l1=frame["l1"].where(measurable, 0.0), relative=frame["relative"].where(measurable, 0.0)
    )


def _spread(frame: Frame, quantity: str) -> Frame:
    """Mean, least and greatest over seeds, by length."""
    spread = frame.groupby("length", as_index=False)[quantity].agg(["mean", "min", "max"])
    return spread.rename(columns={"mean": "value", "min": "low", "max": "high"})


def _decay_panel(
    rows: Frame, fits: Frame, colours: dict[str, str], title: str, size: tuple[int, int]
) -> alt.LayerChart:
    """Means as points with bars from least to greatest over seeds, bounds as dashed lines, laws as
    thin black ones.
    """
    wide = (rows["low"] > 0) & (rows["high"] > rows["low"])
    rows = rows.assign(**{end: rows[end].where(wide) for end in _BAND_ENDS})
    rows, y = log_rows(rows, title, _BAND_ENDS)
    first, last = int(rows["length"].min()), int(rows["length"].max())
    ticks = [10**power for power in range(8) if first <= 10**power <= last]
    looks: theme.Looks = {"values": ticks} if len(ticks) > 1 else {}
    x = axes.length_axis(rows["length"], "n", log=True, format=",d", **looks)
    hue, measured = draw.hue("series", colours, symbolStrokeWidth=3), rows["kind"] == "measured"
    marks = rules(rows[measured], "x", x, "low", "high", color=hue)
    plain = rows.drop(columns=[*_BAND_ENDS])
    marks += curve(plain[measured & ~rows["zero"]], x, y, hue, width=0, points=22)
    marks += curve(plain[measured & rows["zero"]], x, y, hue, width=0)
    marks += curve(plain[~measured], x, y, hue, width=1.3, strokeDash=theme.DASHES["certified"])
    marks += curve(_law_curves(rows, fits), x, y, alt.value(theme.INK), width=1.0)
    return draw.panel(marks, *size, _below(fits))


def _law_curves(rows: Frame, fits: Frame) -> Frame:
    """The fitted law of each series where it was fitted."""
    parts = []
    for fit in fits[fits["law"] != "none"].to_dict("records"):
        lengths = np.unique(rows[rows["length"] >= fit["fitted_from"]]["length"])
        numbers = (fit[name] for name in ("rate", "low", "high", "log_amplitude", "level"))
        law = Law(fit["law"], *numbers, bic=math.nan)
        values = pd.DataFrame({"length": lengths, "value": law(lengths.astype(float))})
        parts.append(values.assign(series=fit.get("series", "measured"), kind="fitted"))
    return pd.concat(parts) if parts else pd.DataFrame()
