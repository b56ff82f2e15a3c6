"""Figures 8 and 9: what falls with length, its mean over seeds with bars from least to greatest, and the fitted law below."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from ostools.experiments.figures.figure8 import Figure8
from ostools.experiments.figures.figure9 import Figure9
from ostools.ground.words import number
from ostools.reporting.look import axes, theme
from ostools.results import Frame, frame_of
from ostools.theory.statistics.fits import FEWEST

READINGS = {"vectors": "q, k, v Gaussian", "weights": "weights Gaussian"}
_PLACES = {
    "vectors": "with q, k, v Gaussian to queries and keys",
    "weights": "with weights Gaussian to the tokens, and so to the stream",
}
_BLOCKS = {
    "post-ln": "Representation: the whole block of Vaswani et al. (skip connections, a LayerNorm after each, MLP), {} heads.",
    "pre-ln": "Representation: the pre-LN block of the paper's Section 2 (skip connections, MLP), {} heads; the paper's is "
    "“the exact structure” of Vaswani et al.",
    "attention": "Representation: what attention returns, {} heads, without skip connections, norms and MLP; the paper's is "
    "“the exact structure” of Vaswani et al.",
}
_HARDLY = 0.5
"""A law that leaves more than this of the first fitted value is not called convergence, whatever its rate."""
_OURS = "Norm, range of n, seeds and bars are ours, as the paper does not name them (those of C.3 are Figure 9's)."
_COLOURS = {"vectors": "vectors", "weights": "weights", "delta": "vectors", "bound": "local"}
_QUANTITIES = {
    "l1": "L1 distance of the last representations",
    "relative": "L2 distance / norm",
    "total_variation": "total variation of the weights",
}


def figure_9_chart(result: Figure9) -> alt.HConcatChart:
    """delta against n, the certified bound, and the law; both axes logarithmic."""
    frame = frame_of(result)
    measured = _spread(frame, "delta").assign(series="measured", kind="measured")
    bound = _spread(frame, "bound").assign(series="certified bound", kind="certified")
    colours = {"measured": theme.colour(_COLOURS["delta"]), "certified bound": theme.colour(_COLOURS["bound"])}
    rows = pd.concat([measured, bound], ignore_index=True)
    parameters = result.provenance.parameters
    text = (
        f"Figure 9: total variation of a softmax, noise to {parameters['noise']:g} on the first {parameters['noisy']}"
    )
    panel = _panel(rows, result.fits, colours, "delta = sum |y − y*|")
    panel = panel.properties(width=520, height=300, title=_below(result.fits))
    marks = [_seeds(frame), *_zeros(frame, ["delta"], ["length"], axes.ZERO_NOTE)]
    subtitle = [" ".join(marks), *figure_9_notes(result)]
    return axes.themed(alt.hconcat(panel, title=alt.TitleParams(text, subtitle=subtitle)))


def figure_9_notes(result: Figure9) -> list[str]:
    """That the law was fitted where delta is not yet one, if it was."""
    noisy, fitted_from = int(result.provenance.parameters["noisy"]), int(result.fits["fitted_from"].iloc[0])
    ours = "The range of n is ours, as the paper does not name it. Every n is the beginning of one sequence a seed."
    if fitted_from >= 100 * noisy:
        return [ours]
    return [
        ours,
        f"Fewer than {FEWEST} lengths are at n = 100 k = {100 * noisy:,} or more, so the law is fitted from 10 k = "
        f"{10 * noisy:,} on. Delta still bends there: the fitted rate is too small.",
    ]


def figure_8_chart(result: Figure8) -> alt.HConcatChart:
    """The distance of the last representations against n, beside it the relative one and the weights' total variation."""
    frame = _without_rounding(frame_of(result))
    readings = [reading for reading in READINGS if (frame["reading"] == reading).any()]
    colours = {READINGS[reading]: theme.colour(_COLOURS[reading]) for reading in readings}
    panels = []
    for quantity, words in _QUANTITIES.items():
        parts = [
            _spread(frame[frame["reading"] == reading], quantity).assign(series=READINGS[reading], kind="measured")
            for reading in readings
        ]
        fits: Frame = result.fits[result.fits["quantity"] == quantity]
        fits = fits.assign(series=fits["reading"].map(READINGS))
        panel = _panel(pd.concat(parts, ignore_index=True), fits, colours, words)
        panels.append(panel.properties(width=310, height=240, title=_below(fits)))
    text = f"Figure 8: one attention layer, d = {result.provenance.parameters['d']}, sinusoidal positions"
    pairs = "A sequence of n tokens against the same with its last token copied. "
    notes = _zeros(frame, list(_QUANTITIES), ["reading", "length"], axes.ROUNDING_NOTE)
    block, places, ours = figure_8_notes(result)
    said = [pairs + _seeds(frame), f"{block} {ours}", " ".join([places, *notes])]
    title = alt.TitleParams(text, subtitle=said)
    return axes.themed(alt.hconcat(*panels, title=title, spacing=30).resolve_scale(color="shared"))


def figure_8_notes(result: Figure8) -> list[str]:
    """Which representation and which reading of C.3 this is, and what is not the paper's."""
    parameters = result.provenance.parameters
    places = "; ".join(_PLACES[str(reading)] for reading in parameters["readings"])
    return [_BLOCKS[str(parameters["block"])].format(parameters["n_heads"]), f"Positions are added {places}.", _OURS]


def in_words(fit: dict[str, Any]) -> str:
    """One row of `ostools.experiments.decay.fits` as a part of a sentence."""
    where = f"from n = {fit['fitted_from']:,}"
    if fit["verdict"] == "too few":
        return f"{fit['used']} lengths {where}, too few to fit"
    if fit["verdict"] == "no decay":
        return f"no decay {where}"
    spread = (
        f"; {number(fit['seeds_low'])} to {number(fit['seeds_high'])} over seeds" if pd.notna(fit["seeds_low"]) else ""
    )
    rate = f"{number(fit['rate'])} (95%: {number(fit['low'])} to {number(fit['high'])} along the mean curve{spread})"
    law = f"e^(-r n), r = {rate}" if fit["law"].startswith("exponential") else f"n^-k, k = {rate}"
    level = f"falls to a level of {number(fit['level'])} by " if fit["level"] > 0 else ""
    unsure = "undecided between laws, best: " if fit["verdict"] == "undecided" else ""
    if fit["falls_to"] > _HARDLY:
        return f"no convergence {where}: to {number(fit['falls_to'])} of the first value by {level}{law}"
    return f"{unsure}{level}{law}, {where}"


def _below(fits: Frame) -> alt.TitleParams:
    """The fitted laws in words, under their panel."""
    words = [f"{fit['series'] + ': ' if 'series' in fit else ''}{in_words(fit)}" for fit in fits.to_dict("records")]
    words = [line for said in words for line in said.replace(" (95%", "\n(95%").split("\n")]  # no wider than a panel
    return alt.TitleParams(
        words, orient="bottom", fontSize=10, fontWeight="normal", offset=4, anchor="start", frame="group"
    )


def _seeds(frame: Frame) -> str:
    seeds = frame["seed"].nunique()
    bars = "; bars: least to greatest" if seeds > 1 else ""
    return f"Mean over {seeds} seed{'s' if seeds > 1 else ''}{bars}. Thin black lines: laws fitted to the mean."


def _without_rounding(frame: Frame) -> Frame:
    """Distances that are float64's rounding at every seed of their reading and length, as the 0 that they are up to it."""
    apart = (frame["relative"] > frame["rounding"]).groupby([frame["reading"], frame["length"]]).transform("any")
    return frame.assign(l1=frame["l1"].where(apart, 0.0), relative=frame["relative"].where(apart, 0.0))


def _zeros(frame: Frame, quantities: list[str], by: list[str], note: str) -> list[str]:
    """What the triangles of a log axis are, where a mean over seeds is exactly 0."""
    means = frame.groupby(by)[quantities].mean()
    return [note] if bool((means == 0).to_numpy().any()) else []


def _spread(frame: Frame, quantity: str) -> Frame:
    """Mean, least and greatest over seeds, by length."""
    found = frame.groupby("length", as_index=False)[quantity].agg(["mean", "min", "max"])
    return found.rename(columns={"mean": "value", "min": "low", "max": "high"})


def _panel(rows: Frame, fits: Frame, colours: dict[str, str], title: str) -> alt.LayerChart:
    axes.require_finite(rows["value"], title)
    rows, floor = axes.floored(rows)
    rows = pd.concat([rows.assign(bar=(rows["low"] > 0) & (rows["high"] > rows["low"])), _laws(rows, fits)])
    rows = rows[["length", "series", "kind", "value", "low", "high", "shown", "zero", "bar"]]
    scale, axis = axes.log_axis(pd.concat([rows["shown"], rows[rows["bar"]]["low"], rows[rows["bar"]]["high"]]), floor)
    legend = alt.Legend(title=None, columns=2, symbolStrokeWidth=3)
    base = axes.chart(rows).encode(
        x=_x(rows["length"]),
        y=alt.Y("shown:Q", title=title, scale=scale, axis=axis),
        tooltip=[alt.Tooltip("length:Q", title="n"), "series:N", "kind:N", alt.Tooltip("value:Q", format=".4g")],
    )
    coloured = base.encode(
        color=alt.Color("series:N", scale=alt.Scale(domain=list(colours), range=list(colours.values())), legend=legend)
    )
    measured = coloured.transform_filter("datum.kind === 'measured'")
    bars = measured.transform_filter("datum.bar").mark_rule(strokeWidth=1.1)
    layers: list[Any] = [
        bars.encode(y=alt.Y("low:Q"), y2="high:Q"),
        measured.transform_filter("!datum.zero").mark_circle(size=22),
    ]
    for kind, width in (("certified", 1.3), ("fitted", 1.0)):
        source = coloured if kind == "certified" else base.encode(color=alt.value(theme.INK), detail=["series:N"])
        line = source.transform_filter(f"datum.kind === '{kind}'")
        layers.append(line.mark_line(strokeWidth=width, strokeDash=theme.DASHES.get(kind, [1, 0])))
    if floor is not None:
        layers.append(axes.zero_marks(coloured))
    return axes.unfolded(alt.layer(*layers), rows)


def _laws(rows: Frame, fits: Frame) -> Frame:
    """The fitted law of each series where it was fitted."""
    parts = []
    for fit in fits.to_dict("records"):
        if fit["law"] == "none":
            continue
        lengths = np.unique(rows[rows["length"] >= fit["fitted_from"]]["length"])
        x = lengths if str(fit["law"]).startswith("exponential") else np.log(lengths)
        value = np.exp(fit["log_amplitude"] - fit["rate"] * x) + fit["level"]
        law = pd.DataFrame({"length": lengths, "value": value, "low": value, "high": value, "shown": value})
        parts.append(law.assign(series=fit.get("series", "measured"), kind="fitted", zero=False, bar=False))
    return pd.concat(parts) if parts else rows.iloc[:0].assign(bar=False)


def _x(lengths: Sequence[float] | Any) -> alt.X:
    first, last = int(min(lengths)), int(max(lengths))
    ticks = [10**power for power in range(8) if first <= 10**power <= last]
    axis = alt.Axis(grid=False, format=",d", values=ticks if len(ticks) > 1 else alt.Undefined)
    return alt.X(
        "length:Q", title="n", scale=alt.Scale(type="log", domain=[first, max(last, first + 1)], nice=False), axis=axis
    )
