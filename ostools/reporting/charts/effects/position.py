"""Sensitivity by position in natural text, of the model and of an untrained one."""

from __future__ import annotations

from typing import Any

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
from ostools.reporting.style import axes, draw
from ostools.results import Chart, Frame, frame_of

NAMES = {
    MODEL: "the model",
    UNTRAINED: "untrained (same architecture)",
    SHUFFLED: "the model, tokens shuffled",
}
_HUES = {MODEL: "full", UNTRAINED: "none", SHUFFLED: "frozen"}
_POSITION_WIDTH, _POSITION_HEIGHT = 620, 260


def position_chart(result: PositionEffect) -> Chart:
    """Geometric mean over passages and rotations of each norm over its passage's middle third; the
    band is the 95% interval.
    """
    titles = (
        "position in the text (each token stands once in every third)",
        "norm of ∂y/∂v over the middle third's",
    )
    panel = _position_panel(result, _POSITION_WIDTH, _POSITION_HEIGHT, titles)
    return draw.figure(
        [[panel]], "Sensitivity by position, token identity taken out", contrast_words(result)
    )


def position_layers(result: PositionEffect, width: int, height: int) -> Any:
    """The same without a title, in a size."""
    return axes.themed(
        _position_panel(result, width, height, ("position in the text", "norm / middle"))
    )


def _position_panel(
    result: PositionEffect, width: int, height: int, titles: tuple[str, str]
) -> Any:
    curves, y = log_rows(position_curves(result), titles[1], ("low", "high"))
    hue = draw.hue(
        "series", {NAMES[source]: _HUES[source] for source in dict.fromkeys(curves["source"])}
    )
    count = int(curves["position"].max()) + 1
    x = axes.length_axis(curves["position"], titles[0], "position", log=False)
    edges = [
        mark for third in (1, 2) for mark in draw.line_at("x", "position", third * count / 3 - 0.5)
    ]
    marks = curve(curves, x, y, hue, bands=[BAND], width=1.8)
    return draw.panel(edges + marks, width, height)


def position_curves(result: PositionEffect) -> Frame:
    """One row a source and position: value (a ratio to the middle third of the same passage), low,
    high (95% over passages).
    """
    from scipy.special import stdtrit

    table: Frame = frame_of(result)
    table = table.assign(log=np.log10(table["norm"].to_numpy(dtype=float)))
    keys = ["source", "passage"]
    middle = (
        table[table["third"] == THIRDS[1]].groupby(keys, sort=False)["log"].mean().rename("middle")
    )
    table = table.join(middle, on=keys)
    by_passage = (
        table.assign(log=table["log"] - table["middle"])
        .groupby([*keys, "position"], sort=False)["log"]
        .mean()
    )
    over = (
        by_passage.groupby(["source", "position"], sort=False)
        .agg(["mean", "std", "count"])
        .reset_index()
    )
    half = stdtrit(over["count"] - 1, 0.975) * over["std"] / np.sqrt(over["count"])
    return over[["source", "position"]].assign(
        series=[NAMES[str(source)] for source in over["source"]],
        value=10 ** over["mean"],
        low=10 ** (over["mean"] - half),
        high=10 ** (over["mean"] + half),
    )
