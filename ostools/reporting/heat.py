"""The attention of the last token as a heat map: a row per head, a column per token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import altair as alt

from ostools.reporting import axes

if TYPE_CHECKING:
    from ostools.reporting.attention import Attention


def attention_chart(attention: Attention) -> alt.Chart:
    """The last token's attention weight on every token, one row per layer and head (`layer.head`), first layer on top.

    The colour scale runs with the square root of the weight, so that small weights are seen too.
    """
    from ostools.reporting.attention import attention_frame

    data = attention_frame(attention)
    scale = alt.Scale(domain=[0, int(data["end"].max())], nice=False)
    heads = list(dict.fromkeys(data["head"]))
    chart = (
        axes.chart(data)
        .mark_rect()
        .encode(
            x=alt.X(
                "start:Q",
                title="position of the token attended to",
                scale=scale,
                axis=alt.Axis(grid=False, tickMinStep=1),
            ),
            x2="end:Q",
            y=alt.Y("head:N", sort=heads, title="layer.head", axis=alt.Axis(labelOverlap=True, ticks=False)),
            color=alt.Color(
                "weight:Q",
                scale=alt.Scale(type="sqrt", scheme="viridis", domain=[0, 1]),
                legend=alt.Legend(
                    title="attention weight (square-root scale)",
                    orient="bottom",
                    direction="horizontal",
                    gradientLength=260,
                    format=".2~f",
                    values=[0, 0.05, 0.2, 0.5, 1],
                ),
            ),
            tooltip=[alt.Tooltip("head:N", title="layer.head"), "token:N", alt.Tooltip("weight:Q", format=".4g")],
        )
    )
    height = max(120, min(12 * len(heads), 480))
    chart = axes.unfolded(chart, data)
    return axes.themed(chart.properties(title="Attention of the last token", width=620, height=height))
