"""The flow of sensitivity as a picture: tokens from left to right, layers upwards, the strongest edges drawn."""

from __future__ import annotations

from typing import Any, cast

import altair as alt

from ostools.measure.paths.flow import Flow
from ostools.reporting.look import axes, theme
from ostools.reporting.look.aside import aside, banded, notes

_EDGES_A_BLOCK = 60
_HUE = theme.colour("second-moment")  # what flows is predicted from second moments


def flow_chart(flow: Flow) -> alt.TopLevelMixin:
    """Edges from token j before a block (below) to token i after it (above); width and ink grow with the flow.

    Circles: the flow that arrives at, or starts from, a token of that layer. Drawn are the strongest edges of every block.
    """
    # pandas types every selection as a frame, a column or a number.
    frame, placed = cast(Any, flow.frame), cast(Any, flow.nodes)
    layers, last = int(placed["layer"].max()), int(placed["position"].max())
    kept = frame.sort_values("flow", ascending=False).groupby("layer").head(_EDGES_A_BLOCK)
    edges = kept.assign(above=kept["layer"] + 1)[
        ["layer", "above", "key", "query", "key_token", "query_token", "flow"]
    ].reset_index(drop=True)
    started = frame.groupby(["layer", "key"])["flow"].sum().reset_index()
    nodes = started.rename(columns={"key": "position"})
    nodes.loc[len(nodes)] = [layers, last, 1.0]
    nodes = nodes.astype({"layer": int, "position": int})
    nodes = nodes.merge(placed[["layer", "position", "token", "frobenius_norm"]], on=["layer", "position"])
    words = placed[placed["layer"] == 0]["token"].tolist()
    others = aside(placed)
    x = axes.token_axis(words, field="key", margin=0.7, aside=others)
    labels = axes.lookup(list(range(layers + 1)), ["embedding", *[f"after block {n}" for n in range(layers)]])
    y = alt.Y(
        "layer:Q",
        title=None,
        scale=alt.Scale(domain=[-0.3, layers + 0.3], nice=False),
        axis=alt.Axis(values=list(range(layers + 1)), grid=False, labelExpr=labels, ticks=False, domain=False),
    )
    most = float(edges["flow"].max())
    lines = (
        axes.chart(edges)
        .mark_rule(strokeCap="round", color=_HUE)
        .encode(
            x=x,
            x2="query:Q",
            y=y,
            y2="above:Q",
            strokeWidth=alt.StrokeWidth("flow:Q", scale=_shared(most, 0.2, 7.0), legend=None),
            strokeOpacity=alt.StrokeOpacity("flow:Q", scale=_shared(most, 0.12, 0.9), legend=None),
            tooltip=["key_token:N", "query_token:N", "layer:Q", alt.Tooltip("flow:Q", format=".2%")],
        )
    )
    circles = (
        axes.chart(nodes)
        .mark_circle(color=_HUE)
        .encode(
            x=alt.X("position:Q"),
            y=alt.Y("layer:Q"),
            size=alt.Size("flow:Q", scale=alt.Scale(domain=[0, 1], range=[6, 420]), legend=None),
            tooltip=[
                "token:N",
                "layer:Q",
                alt.Tooltip("flow:Q", format=".2%"),
                alt.Tooltip("frobenius_norm:Q", format=".4g", title="predicted Frobenius norm"),
            ],
        )
    )
    title = alt.TitleParams(
        "How sensitivity flows to the last token (predicted)",
        subtitle=[
            "Each token starts with its share of all tokens' predicted norms of dy/dv. A wider edge carries more of it. "
            f"Drawn are the {_EDGES_A_BLOCK} strongest edges of each block.",
            *notes(others),
        ],
    )
    picture = alt.layer(axes.unfolded(lines, edges), axes.unfolded(circles, nodes))
    return axes.themed(banded(picture, others).properties(title=title, width=720, height=70 + 80 * layers))


def _shared(most: float, low: float, high: float) -> alt.Scale:
    """Square root of the flow, so that the many thin edges are seen beside the few thick ones."""
    return alt.Scale(type="sqrt", domain=[0, most], range=[low, high])
