"""The scores of all heads as heat maps: a panel a score, a row a layer, a column a head."""

from __future__ import annotations

from typing import Any

import altair as alt

from ostools.measure.attention.heads import HeadScores
from ostools.reporting.forms.heat import layers_by
from ostools.reporting.look import draw

PANELS = {
    "first_token": "weight on the first token",
    "sink_rate": "sink rate (weight > 0.3)",
    "previous_token": "weight on the previous token",
    "normalised_entropy": "entropy / log of visible keys",
    "last_to_first": "last token's weight on the first",
    "last_to_itself": "last token's weight on itself",
    "last_to_text": "last token's weight on the text",
    "last_to_carriers": "last token's weight on carriers",
}
_COLUMNS = 4
_NAMED = 8  # more heads than that get no number in their cell


def heads_chart(result: HeadScores) -> Any:
    """Every score is a share between 0 and 1, on one colour scale; means over queries, and over the prompts."""
    summary: Any = result.summary
    prompts: Any = result.frame
    heads, layers = int(summary["head"].max()) + 1, int(summary["layer"].max()) + 1
    scale = alt.Scale(scheme="viridis", domain=[0, 1])
    size = {"width": min(30 * heads, 260), "height": min(24 * layers, 420)}
    panels = []
    for name, title in PANELS.items():
        cells = summary[["layer", "head"]].assign(value=summary[name].astype(float)).dropna()
        if len(cells):
            marks = layers_by(cells, "head", "head", scale, digits=".2f" if heads <= _NAMED else "")
            panels.append(draw.layers(*marks, title=draw.heading(title), **size))
    count = int(prompts["prompt"].nunique())
    where = f"mean over {count} prompts" if count > 1 else f"one prompt of {prompts['tokens'].iloc[0]} tokens"
    scores: Any = alt.concat(*panels, columns=_COLUMNS, spacing=24)
    return draw.figure([[scores]], f"Where the attention heads look, {where}")
