"""The total variation of B.3's proof on real attention, against length, layer by layer."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np

from ostools.ground.words import short_name
from ostools.measure.attention.variation import AttentionVariation
from ostools.reporting.forms.curve import curve, fitted
from ostools.reporting.look import axes, draw, theme
from ostools.results import Frame, frame_of

WIDTH, HEIGHT = 290, 170
QUANTITIES = {
    "total": ("δ + own weight: the proof's bound for values of norm 1", "δ + own weight"),
    "delta": ("δ: L1 distance over the tokens of v (no factor 1/2)", "δ"),
    "own": ("own weight of the repeated token, α*(n+1, n+1)", "own weight"),
    "kl": ("KL of the row of n from that of n + 1, in nats", "KL (nats)"),
}
"""By column: what a panel's title says, and its axis."""


def attention_variation_chart(result: AttentionVariation) -> Any:
    """A panel a quantity: the mean over heads and seeds against length, a line a layer.

    Where KL is infinite in some head its mean is too, and nothing is drawn; the chart says so. Exact zeros stand as triangles
    on the lower edge.
    """
    table, frame = result.over_heads(), frame_of(result)
    panels = [_panel(table, name) for name in QUANTITIES]
    name, task = short_name(result.provenance.model), str(frame["task"].iloc[0])
    title = f"How the last token's attention moves when it is repeated, {task} on {name}"
    return draw.figure(draw.in_rows(panels, 2), title, _notes(frame, table), spacing=26)


def _notes(frame: Frame, table: Frame) -> list[str]:
    heads, seeds = frame["head"].nunique(), frame["seed"].nunique()
    over = f"{heads} heads" if seeds == 1 else f"{heads} heads and {seeds} seeds"
    notes = [f"Mean over {over}, in float64. In the proof of Theorem B.3 δ + own weight goes to 0 as n grows."]
    if (infinite := int(np.isinf(table["kl"]).sum())) > 0:
        notes.append(
            f"KL is infinite at {infinite} of {len(table)} layers and lengths: some head no longer sees a token that it saw."
        )
    return [*notes, axes.ZERO_NOTE] if (table[list(QUANTITIES)] == 0).any(axis=None) else notes


def _panel(table: Frame, name: str) -> Any:
    title, axis = QUANTITIES[name]
    size: dict[str, Any] = {"width": WIDTH, "height": HEIGHT, "title": draw.heading(title)}
    data = table[["layer", "length"]].assign(value=table[name], series=table["layer"])[np.isfinite(table[name])]
    if data.empty:
        alone = draw.rows(table[["layer"]].iloc[:1]).mark_text(text="infinite at every length", fontSize=12)
        return alone.properties(**size)
    rows, y = fitted(data, axis)
    last = int(table["layer"].max())
    hues = theme.ordered(last + 1)
    scale = alt.Scale(domain=list(range(max(last + 1, 2))), range=[*hues, *hues][: max(last + 1, 2)])
    ticks = axes.whole_ticks(0, last)
    legend = alt.Legend(title="layer", orient="right", values=ticks, format="d", type="symbol", columns=1)
    hue, told = alt.Color("layer:Q", scale=scale, legend=legend), ["layer:Q", "length:Q"]
    points = 24 if rows["length"].nunique() == 1 else 0
    marks = curve(rows, axes.length_axis(table["length"]), y, hue, width=1.4, points=points, tooltip=told)
    return draw.layers(*marks, **size)
