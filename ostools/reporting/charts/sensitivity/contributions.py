"""The parts of one logit, token by token: bars up and down from zero, on a linear axis, because parts have a sign."""

from __future__ import annotations

from typing import Any

import altair as alt

from ostools.measure.contributions.contributions import Contributions
from ostools.reporting.forms.profile import WIDTH, of_tokens
from ostools.reporting.look import axes, draw, theme
from ostools.results import Frame, frame_of

_UP, _DOWN = "raises the logit", "lowers the logit"


def contributions_chart(result: Contributions) -> Any:
    """A bar a token; the biases, which belong to none, and the sum stand in the subtitle."""
    table, said = frame_of(result), result.provenance.parameters
    axes.require_finite(table["contribution"], "contributions")
    of: Frame = result.of_tokens
    values = of["contribution"].astype(float).reset_index(drop=True)
    rows = of_tokens(of.assign(position=range(len(of))), zero=0.0).reset_index(drop=True)
    rows = rows.assign(value=values, start=rows["position"] - 0.4, end=rows["position"] + 0.4)
    rows["series"] = [_UP if value >= 0 else _DOWN for value in values]
    total, biases = float(table["contribution"].sum()), float(table["contribution"].iloc[-1])
    sum_of = f"the logit, {total:.4g}"
    if said["soft_cap"] is not None:
        sum_of = f"{total:.4g} before the soft-cap, the logit, {float(said['logit']):.4g}, after it"
    colours = {_UP: theme.colour("full"), _DOWN: theme.colour("frozen")}
    bars = draw.rows(rows).encode(
        x=axes.token_axis(rows["token"].tolist(), field="start", margin=0.5),
        x2="end:Q",
        y=alt.Y("value:Q", title="contribution to the logit"),
        y2="zero:Q",
        color=draw.hue("series", colours, symbolType="square", symbolSize=100),
        tooltip=["position:Q", "token:N", draw.VALUE],
    )
    panel = draw.layers(bars.mark_rect(), *draw.line_at("y", "zero", 0.0, dash=[1, 0]), width=WIDTH, height=260)
    notes = [
        f"Tokens together {values.sum():+.4g}, biases {biases:+.4g}: {sum_of}.",
        "Patterns, norm scales and activations are held as they are on this prompt. A part is not a cause.",
    ]
    return draw.figure([[panel]], f"What each token contributes to “{theme.shown(str(said['token']))}”", notes)
