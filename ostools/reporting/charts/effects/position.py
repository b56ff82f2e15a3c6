"""Sensitivity by position in natural text, of the model and of an untrained one."""

from __future__ import annotations

import altair as alt
import numpy as np

from ostools.measure.profiles.position_effect import (
    MODEL,
    SHUFFLED,
    THIRDS,
    UNTRAINED,
    PositionEffect,
)
from ostools.reporting.findings.effects import contrast_words
from ostools.reporting.forms import BAND, curve, log_rows
from ostools.reporting.style import axes, draw, notebook
from ostools.results import Chart, Frame, frame_of

NAMES = {
    MODEL: "the model",
    UNTRAINED: "untrained (same architecture)",
    SHUFFLED: "the model, tokens shuffled",
}
_HUES = {MODEL: "full", UNTRAINED: "none", SHUFFLED: "frozen"}


def position_chart(result: PositionEffect) -> Chart:
    """Geometric mean over passages and rotations of each norm over its passage's middle third; the
    band is the 95% interval.
    """
    across = "position in the text (each token stands once in every third)"
    panel = _position_panel(result, across, "norm of ∂y/∂v over the middle third's", 620, 260)
    title = "Sensitivity by position, token identity taken out"
    return draw.figure([[panel]], title, contrast_words(result))


def position_layers(result: PositionEffect, width: int, height: int) -> Chart:
    """The same without a title, in a size."""
    panel = _position_panel(result, "position in the text", "norm / middle", width, height)
    return notebook.themed(panel)


def _position_panel(
    result: PositionEffect, across: str, up: str, width: int, height: int
) -> alt.LayerChart:
    curves, y = log_rows(position_curves(result), up, ("low", "high"))
    hues = {NAMES[source]: _HUES[source] for source in dict.fromkeys(curves["source"])}
    x = axes.length_axis(curves["position"], across, "position", log=False)
    marks = curve(curves, x, y, draw.hue("series", hues), bands=[BAND], width=1.8)
    for third in (1, 2):
        edge = third * (int(curves["position"].max()) + 1) / 3 - 0.5
        marks += draw.line_at("x", "position", edge)
    return draw.panel(marks, width, height)


def position_curves(result: PositionEffect) -> Frame:
    """One row a source and position: value (a ratio to the middle third of the same passage), low,
    high (95% over passages).
    """
    from scipy.special import stdtrit

    table: Frame = frame_of(result)
    table = table.assign(log=np.log10(table["norm"].to_numpy(dtype=float)))
    keys = ["source", "passage"]
    middle = table[table["third"] == THIRDS[1]].groupby(keys, sort=False)["log"].mean()
    table = table.join(middle.rename("middle"), on=keys)
    table = table.assign(log=table["log"] - table["middle"])
    by_passage = table.groupby([*keys, "position"], sort=False)["log"].mean()
    over_passages = by_passage.groupby(["source", "position"], sort=False)
    over = over_passages.agg(["mean", "std", "count"]).reset_index()
    half = stdtrit(over["count"] - 1, 0.975) * over["std"] / np.sqrt(over["count"])
    return over[["source", "position"]].assign(
        series=[NAMES[str(source)] for source in over["source"]],
        value=10 ** over["mean"],
        low=10 ** (over["mean"] - half),
        high=10 ** (over["mean"] + half),
    )
