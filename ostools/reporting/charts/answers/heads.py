"""The scores of all heads as heat maps: a panel a score, a row a layer, a column a head."""

from __future__ import annotations

from typing import Any

import altair as alt

from ostools.measure.attention.heads import HeadScores
from ostools.reporting.look import axes, draw
from ostools.results import Frame

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


def heads_chart(result: HeadScores) -> alt.ConcatChart:
    """Every score is a share between 0 and 1, on one colour scale; means over queries, and over the prompts."""
    summary: Any = result.summary
    prompts: Any = result.frame
    shown = {name: title for name, title in PANELS.items() if summary[name].notna().any()}
    panels = [_panel(summary, name, title) for name, title in shown.items()]
    count = int(prompts["prompt"].nunique())
    where = f"mean over {count} prompts" if count > 1 else f"one prompt of {prompts['tokens'].iloc[0]} tokens"
    title = alt.TitleParams(f"Where the attention heads look, {where}")
    return axes.themed(alt.concat(*panels, columns=_COLUMNS, title=title, spacing=24))


def _panel(summary: Frame, name: str, title: str) -> alt.LayerChart:
    data = summary[["layer", "head"]].assign(value=summary[name].astype(float)).dropna()
    heads, layers = int(summary["head"].max()) + 1, int(summary["layer"].max()) + 1
    return cells(data, "head:O", "head", alt.Scale(scheme="viridis", domain=[0, 1]), named=heads <= _NAMED).properties(
        width=min(30 * heads, 260), height=min(24 * layers, 420), title=draw.heading(title)
    )


def cells(
    data: Frame,
    x: str,
    x_title: str,
    scale: alt.Scale,
    *,
    named: bool,
    light: str = "datum.value < 0.435",
    digits: str = ".2f",
) -> Any:
    """A cell for every layer (first at the bottom) and `x`, coloured by `value`, with its number where `named`.

    `light`: the expression that says where the cell is dark and its number white. On every shade white or black has a contrast
    of at least 4.5; the default is where viridis over 0 to 1 changes between them.
    """
    base = draw.rows(data).encode(
        x=alt.X(x, title=x_title, axis=alt.Axis(labelAngle=0, ticks=False, labelOverlap=True)),
        y=alt.Y("layer:O", title="layer", sort="descending", axis=alt.Axis(ticks=False, labelOverlap=True)),
    )
    legend = alt.Legend(title=None, orient="right", gradientLength=80, format=".2~g", tickCount=3)
    colour = alt.Color("value:Q", scale=scale, legend=legend)
    tooltip = ["layer:O", alt.Tooltip(x, title=x_title), draw.VALUE]
    layers = [base.mark_rect().encode(color=colour, tooltip=tooltip)]
    if named:
        ink = alt.condition(light, alt.value("#ffffff"), alt.value("#000000"))
        layers.append(base.mark_text(fontSize=9).encode(text=alt.Text("value:Q", format=digits), color=ink))
    return alt.layer(*layers)
