"""The parts of one logit, token by token: bars up and down from zero, on a linear axis, because parts have a sign."""

from __future__ import annotations

import altair as alt
import pandas as pd

from ostools.measure import Contributions
from ostools.reporting.look import axes, draw, theme
from ostools.results import Frame, frame_of

_UP, _DOWN = "raises the logit", "lowers the logit"


def contributions_chart(result: Contributions) -> alt.LayerChart:
    """A bar a token; the biases, which belong to none, and the sum stand in the subtitle."""
    axes.require_finite(frame_of(result)["contribution"], "contributions")
    rows: Frame = result.of_tokens
    tokens = [theme.shown(str(token)) for token in rows["token"]]
    values = rows["contribution"].astype(float)
    data = pd.DataFrame(
        {
            "start": [position - 0.4 for position in range(len(tokens))],
            "end": [position + 0.4 for position in range(len(tokens))],
            "position": range(len(tokens)),
            "token": tokens,
            "value": values.tolist(),
            "zero": [0.0] * len(tokens),
            "way": [_UP if value >= 0 else _DOWN for value in values],
        }
    )
    said = result.provenance.parameters
    biases = float(frame_of(result)["contribution"].iloc[-1])
    subtitle = [
        f"Tokens together {values.sum():+.4g}, biases {biases:+.4g}: {_sum(result)}.",
        "Patterns, norm scales and activations are held as they are on this prompt. A part is not a cause.",
    ]
    colours = {_UP: theme.colour("full"), _DOWN: theme.colour("frozen")}
    bars = draw.rows(data).encode(
        x=axes.token_axis(tokens, field="start", margin=0.5),
        x2="end:Q",
        y=alt.Y("value:Q", title="contribution to the logit"),
        y2="zero:Q",
        color=draw.hue("way", colours, symbolType="square", symbolSize=100),
        tooltip=["position:Q", "token:N", draw.VALUE],
    )
    zero = axes.chart(line := pd.DataFrame({"zero": [0.0]})).encode(y=alt.Y("zero:Q"))
    title = alt.TitleParams(f"What each token contributes to “{theme.shown(str(said['token']))}”", subtitle=subtitle)
    rule = axes.unfolded(zero, line).mark_rule(strokeWidth=0.8)
    return axes.themed(alt.layer(bars.mark_rect(), rule).properties(width=620, height=260, title=title))


def _sum(result: Contributions) -> str:
    said, total = result.provenance.parameters, float(frame_of(result)["contribution"].sum())
    if said["soft_cap"] is None:
        return f"the logit, {total:.4g}"
    return f"{total:.4g} before the soft-cap, the logit, {float(said['logit']):.4g}, after it"
