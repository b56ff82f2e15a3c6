"""Several prompts, or the texts of a sweep: mean profiles over relative position."""

from __future__ import annotations

import altair as alt

from ostools.measure.jacobian.sensitivity import Sensitivities
from ostools.reporting.charts.tokens import kind_legend
from ostools.reporting.forms import BAND, curve, log_rows
from ostools.reporting.style import draw, theme
from ostools.results import Chart

_NORMS = {"operator": "operator", "frobenius": "Frobenius"}


def several_chart(result: Sensitivities) -> Chart:
    """The mean share over the even share, a line a source with the 95% interval over prompts; of
    the lowest layer.
    """
    every = result.over_position()
    table = every[every["layer"] == every["layer"].min()]
    # A share is so many times an even one, at the middle of its bin.
    table = table.assign(
        series=table["kind"].map(theme.KINDS) + ": " + table["source"],
        name=table["source"],
        at=(table["start"] + table["end"]) / 2,
        value=table["mean"],
    )
    hue, dash = kind_legend(table)
    x = alt.X("at:Q", title="relative position", scale=alt.Scale(domain=[0, 1]))
    panels = []
    for norm, group in table.groupby("norm", sort=False):
        columns = ["series", "start", "end", "at", "value", "low", "high"]
        rows, y = log_rows(group[columns], "share / even share", ["low", "high"])
        marks = curve(rows, x, y, hue, dash=dash, bands=[BAND], points=14, width=1.8)
        even = draw.line_at("y", "value", 1.0)
        panels.append(draw.panel(even + marks, 300, 240, f"{_NORMS[str(norm)]} norm"))
    what = "Sensitivity"
    if "logit_norm" in result.provenance.parameters:
        what += f" of {theme.differentiated(result.provenance.parameters)[1]}"
    notes = (
        f"Mean over {len(result)} prompts, each by the shares of its own sum. Dotted: an even "
        "share."
    )
    notes += f" Of layer {every['layer'].min()}." * (every["layer"].nunique() > 1)
    notes += " Shade: the 95% interval of the mean." * bool(table["low"].notna().any())
    title = f"{what} over {len(result)} prompts, by relative position"
    return draw.figure([panels], title, [notes], spacing=30)
