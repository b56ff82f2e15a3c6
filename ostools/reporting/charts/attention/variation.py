"""The total variation of B.3's proof on real attention, against length, layer by layer."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np

from ostools.ground.words import short_name
from ostools.measure.attention.variation import AttentionVariation
from ostools.reporting.look import axes, draw, theme
from ostools.results import Frame, frame_of

WIDTH, HEIGHT = 290, 170
QUANTITIES = {
    "total": "δ + own weight: the proof's bound for values of norm 1",
    "delta": "δ: L1 distance over the tokens of v (no factor 1/2)",
    "own": "own weight of the repeated token, α*(n+1, n+1)",
    "kl": "KL of the row of n from that of n + 1, in nats",
}
_AXES = {"total": "δ + own weight", "delta": "δ", "own": "own weight", "kl": "KL (nats)"}


def attention_variation_chart(result: AttentionVariation) -> alt.VConcatChart:
    """A panel a quantity: the mean over heads and seeds against length, a line a layer.

    Where KL is infinite in some head its mean is too, and nothing is drawn; the chart says so. Exact zeros stand as triangles
    on the lower edge.
    """
    table = result.over_heads()
    panels = [_panel(table, name) for name in QUANTITIES]
    rows: list[Any] = [alt.hconcat(*panels[start : start + 2], spacing=26) for start in (0, 2)]
    frame = frame_of(result)
    name, task = short_name(result.provenance.model), str(frame["task"].iloc[0])
    words = f"How the last token's attention moves when it is repeated, {task} on {name}"
    title = alt.TitleParams(words, subtitle=_notes(frame, table))
    return axes.themed(alt.vconcat(*rows, title=title, spacing=20))


def _notes(frame: Frame, table: Frame) -> list[str]:
    heads, seeds = frame["head"].nunique(), frame["seed"].nunique()
    over = f"{heads} heads" if seeds == 1 else f"{heads} heads and {seeds} seeds"
    notes = [f"Mean over {over}, in float64. In the proof of Theorem B.3 δ + own weight goes to 0 as n grows."]
    if (infinite := int(np.isinf(table["kl"]).sum())) > 0:
        notes.append(
            f"KL is infinite at {infinite} of {len(table)} layers and lengths: some head no longer sees a token that it saw."
        )
    if (table[list(QUANTITIES)] == 0).any(axis=None):
        notes.append(axes.ZERO_NOTE)
    return notes


def _panel(table: Frame, name: str) -> Any:
    data, floor = axes.floored(table[["layer", "length"]].assign(value=table[name])[np.isfinite(table[name])])
    if data.empty:
        alone = draw.rows(table[["layer"]].iloc[:1]).mark_text(text="infinite at every length", fontSize=12)
        return alone.properties(width=WIDTH, height=HEIGHT, title=draw.heading(QUANTITIES[name]))
    last = int(table["layer"].max())
    hues = theme.ordered(last + 1)
    scale = alt.Scale(domain=list(range(max(last + 1, 2))), range=[*hues, *hues][: max(last + 1, 2)])
    ticks = axes.whole_ticks(0, last)
    legend = alt.Legend(title="layer", orient="right", values=ticks, format="d", gradientLength=110)
    base = draw.rows(data).encode(
        x=axes.length_axis(table["length"]),
        y=draw.log_y(data["shown"], _AXES[name], floor),
        color=alt.Color("layer:Q", scale=scale, legend=legend),
        tooltip=["layer:Q", "length:Q", draw.VALUE],
    )
    line = base.transform_filter("!datum.zero").mark_line(strokeWidth=1.4, point=len(set(data["length"])) == 1)
    marks = [line.encode(detail="layer:Q"), *draw.zeros(base, floor)]
    return draw.layers(*marks, width=WIDTH, height=HEIGHT, title=draw.heading(QUANTITIES[name]))
