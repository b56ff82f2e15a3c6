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
_COLOURS = {"q, k, v Gaussian": "vectors", "weights Gaussian": "weights"}
_COLOURS_9 = {"measured": "vectors", "certified bound": "local"}
_HARDLY = 0.5
"""A law that leaves more than this of the first fitted value is not called convergence, whatever
its rate.
"""
_OURS = (
    "Representation: the whole block of Vaswani et al., 8 heads. Positions are added to queries and "
    "keys (q, k, v Gaussian), or to the stream (weights Gaussian). Norm, range of n, seeds and bars "
    "are ours."
)
_OURS_IN_9 = "The range of n is ours. Every n is the beginning of one sequence a seed."
_MARKS = "Mean over seeds; bars: least to greatest. Thin black lines: laws fitted to the mean."
_QUANTITIES = {
    "l1": "L1 distance of the last representations",
    "relative": "L2 distance / norm",
    "total_variation": "total variation of the weights",
}


def figure_8_chart(result: Figure8) -> Chart:
    """The distance of the last representations against n, beside it the relative one and the
    weights' total variation; without what is rounding.
    """
    frame: Frame = frame_of(result)
    frame = frame[frame["relative"] > frame["rounding"]].assign(
        series=frame["reading"].replace(READINGS)
    )
    fits: Frame = result.fits.assign(series=result.fits["reading"].replace(READINGS))
    panels = [
        _decay_panel(
            _spread(frame, quantity),
            fits[fits["quantity"] == quantity],
            _COLOURS,
            words,
            (310, 240),
        )
        for quantity, words in _QUANTITIES.items()
    ]
    title = "Figure 8: one attention layer, d = 64, sinusoidal positions"
    notes = ["n tokens against the same with the last token copied. " + _MARKS, _OURS]
    return draw.figure([panels], title, notes, spacing=30, color="shared")


def figure_9_chart(result: Figure9) -> Chart:
    """delta against n, the certified bound, and the law; both axes logarithmic."""
    frame = frame_of(result)
    measured = _spread(frame.assign(series="measured"), "delta")
    bound = _spread(frame.assign(series="certified bound"), "bound").assign(kind="certified")
    fits = result.fits.assign(series="measured")
    panel = _decay_panel(
        pd.concat([measured, bound], ignore_index=True),
        fits,
        _COLOURS_9,
        "delta = sum |y − y*|",
        (520, 300),
    )
    noisy, noise = (result.provenance.parameters[name] for name in ("noisy", "noise"))
    title = f"Figure 9: total variation of a softmax, noise to {noise:g} on the first {noisy}"
    return draw.figure([[panel]], title, [_MARKS, _OURS_IN_9])


def figure_8_findings(result: Figure8) -> list[str]:
    """The law that each curve follows, and which representation this is."""
    return [*first_few(_laws(result.fits, "reading", "quantity"), MOST - 1), _OURS]


def figure_9_findings(result: Figure9) -> list[str]:
    """The law that each curve follows, and from where on it was fitted."""
    return [*first_few(_laws(result.fits, "quantity"), MOST - 1), _OURS_IN_9]


def _laws(fits: Frame, *keys: str) -> list[str]:
    return [
        f"{' '.join(str(fit[key]) for key in keys)}: {law_words(fit)}."
        for fit in fits.to_dict("records")
    ]


def law_words(fit: Mapping[str, Any]) -> str:
    """One row of `ostools.paper.synthetic.decay_fits` as a part of a sentence."""
    where = f"from n = {fit['fitted_from']:,}"
    if fit["law"] == "none":
        return f"{fit['verdict']} {where} ({fit['used']} lengths)"
    rate, low, high = (number(fit[name]) for name in ("rate", "low", "high"))
    form = "e^(-r n), r" if fit["law"].startswith("exponential") else "n^-k, k"
    law = f"{form} = {rate} [{low}, {high}] along the mean curve"
    if pd.notna(fit["seeds_low"]):
        law += f", [{number(fit['seeds_low'])}, {number(fit['seeds_high'])}] over seeds"
    if fit["level"] > 0:
        law += f", to a level of {number(fit['level'])}"
    if fit["falls_to"] > _HARDLY:
        return f"no convergence {where}: to {number(fit['falls_to'])} of the first value by {law}"
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
    marks = rules(rows[measured & (rows["high"] > rows["low"])], "x", x, "low", "high", color=hue)
    marks += curve(plain[measured], x, y, hue, width=0, points=22)
    marks += curve(plain[~measured], x, y, hue, width=1.3, strokeDash=theme.DASHES["certified"])
    marks += curve(_law_curves(rows, fits), x, y, alt.value(theme.INK), width=1.0)
    below: theme.Looks = {"orient": "bottom", "fontSize": 10, "offset": 4, "anchor": "start"}
    words = [f"{fit['series']}: {law_words(fit)}" for fit in fits.to_dict("records")]
    # No wider than a panel.
    lines = [
        line for sentence in words for line in sentence.replace(" along", "\nalong").split("\n")
    ]
    return draw.panel(marks, *size, draw.heading(lines, **below))


def _law_curves(rows: Frame, fits: Frame) -> Frame:
    """The fitted law of each series where it was fitted."""
    parts = [pd.DataFrame()]
    for fit in fits[fits["law"] != "none"].to_dict("records"):
        lengths = np.unique(rows[rows["length"] >= fit["fitted_from"]]["length"])
        numbers = (fit[name] for name in ("rate", "low", "high", "log_amplitude", "level"))
        law = Law(fit["law"], *numbers, bic=math.nan)
        values = pd.DataFrame({"length": lengths, "value": law(lengths.astype(float))})
        parts.append(values.assign(series=fit["series"], kind="fitted"))
    return pd.concat(parts)
