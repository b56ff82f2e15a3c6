"""The paper's claims on one model: a row a claim, its outcome in one of four columns."""

from __future__ import annotations

from typing import Any

import altair as alt

from ostools.experiments.reproduce.claim import AGREES, BY_CONSTRUCTION, DISAGREES, OUTCOMES, UNTESTED
from ostools.experiments.reproduce.reproduction import Reproduction
from ostools.ground.words import short_name
from ostools.reporting.look import axes, draw, theme
from ostools.results import frame_of

WIDTH, ROW = 460, 19
_COLOURS = {
    AGREES: theme.colour("right"),
    BY_CONSTRUCTION: theme.colour("no answer"),
    DISAGREES: theme.colour("wrong"),
    UNTESTED: theme.colour("no answer"),
}
_SHAPES = {AGREES: "circle", BY_CONSTRUCTION: "cross", DISAGREES: "diamond", UNTESTED: "square"}


def claims_chart(result: Reproduction) -> alt.Chart:
    """The claims in the paper's order, each with its place; colour and shape say the same as the column."""
    frame = frame_of(result)
    data = frame[["claim", "place", "outcome"]].assign(row=frame["claim"] + ", " + frame["place"])
    told = ", ".join(f"{name}: {count}" for name, count in result.outcomes.items())
    base: Any = draw.rows(data)
    chart = base.mark_point(size=70, filled=True, strokeWidth=2).encode(
        x=alt.X(
            "outcome:N",
            title=None,
            scale=alt.Scale(domain=list(OUTCOMES)),
            axis=alt.Axis(orient="top", labelAngle=0, labelLimit=0, grid=False, ticks=False, domain=False),
        ),
        y=alt.Y(
            "row:N",
            title=None,
            sort=list(data["row"]),
            axis=alt.Axis(labelLimit=0, grid=True, ticks=False, domain=False),
        ),
        color=alt.Color("outcome:N", scale=_scale(_COLOURS), legend=None),
        shape=alt.Shape("outcome:N", scale=_scale(_SHAPES), legend=None),
        tooltip=["claim:N", "place:N", "outcome:N"],
    )
    title = alt.TitleParams(
        f"{len(data)} claims of the paper on {short_name(result.provenance.model)}", subtitle=[told]
    )
    return axes.themed(chart.properties(width=WIDTH, height=ROW * max(len(data), 1), title=title))


def _scale(looks: dict[str, str]) -> alt.Scale:
    return alt.Scale(domain=list(looks), range=list(looks.values()))
