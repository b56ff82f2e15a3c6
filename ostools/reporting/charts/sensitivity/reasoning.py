"""Sensitivity along a chain of thought: token by token above, part by part below."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt

from ostools.experiments.reasoning.chain_of_thought import ChainOfThought
from ostools.experiments.reasoning.written import BEHIND, BY_MODEL, PARTS
from ostools.ground.names import known_norm
from ostools.ground.words import short_name
from ostools.reporting.charts.sensitivity.over_tokens import NORMS
from ostools.reporting.look import axes, draw, theme
from ostools.results import Frame, frame_of

WIDTH, HEIGHT, ROW = 640, 200, 24


def chain_of_thought_chart(result: ChainOfThought) -> alt.VConcatChart:
    """Above: the norm of d y_n / d v_i for every token (the operator norm, or a sketch's Frobenius norm), coloured by its part.
    Below: each part's share of the sum, beside its share of the tokens, and its mean per token. Of the first linearisation
    measured.
    """
    frame = frame_of(result)
    name = str(frame["linearisation"].iloc[0])
    frame = frame[frame["linearisation"] == name]
    table: Frame = result.summary
    table = table[(table["linearisation"] == name) & (table["norm"] == known_norm(frame["method"]))]
    known = [part for part in PARTS if (frame["part"] == part).any()]
    colours = {part: theme.colour(part) for part in known}
    parameters = result.provenance.parameters
    said = f"{_source(parameters)}. "
    said += f"Next comes {theme.shown(parameters['answer_token'])}; the right one is {theme.shown(parameters['right_token'])}."
    notes = [said]
    if set(frame["method"]) != {"exact"}:
        notes.append("Norms are estimated.")
    asked = f"{parameters['task']}, {parameters['length']} items"
    title = f"Sensitivity of the answer to prompt and reasoning: {asked}, on {short_name(result.provenance.model)}"
    below = alt.hconcat(_shares(table, known, colours), _means(table, known, colours), spacing=24)
    chart = alt.vconcat(_tokens(frame, colours, name), below, spacing=20, title=alt.TitleParams(title, subtitle=notes))
    return axes.themed(chart.resolve_scale(color="shared"))


def _source(parameters: Mapping[str, Any]) -> str:
    """Whose the reasoning and the begun line are."""
    source, some = parameters["reasoning_source"], bool(parameters["reasoning"])
    if source == BY_MODEL:
        return "The model wrote the reasoning and began the answer line" if some else "The model began the answer line"
    if source == BEHIND:
        what = "the reasoning" if some else "nothing"
        return f"The model wrote {what}; the answer line was begun for it"
    return "The reasoning was given" if some else "No reasoning; the answer line was begun"


def _tokens(frame: Frame, colours: dict[str, str], linearisation: str) -> Any:
    norm = known_norm(frame["method"])
    data = frame[["position", "part", "line"]].assign(
        token=[theme.shown(str(token)) for token in frame["token"]], value=frame[f"{norm}_norm"]
    )
    data["line"] = data["line"].astype("float64").astype(object).where(data["line"].notna(), None)
    floored, floor = axes.floored(data)
    tokens = frame["token"].map(str).tolist()
    y = draw.log_y(floored["shown"], f"{NORMS[norm]} ({linearisation})", floor)
    tooltip = ["position:Q", "token:N", "part:N", "line:Q", draw.VALUE]
    base = axes.chart(floored).encode(x=axes.token_axis(tokens, True), y=y, tooltip=tooltip)
    marks = base.mark_circle(size=22, opacity=1).encode(color=_hue(colours))
    return axes.unfolded(alt.layer(marks, *draw.zeros(base, floor)), floored).properties(width=WIDTH, height=HEIGHT)


def _shares(table: Frame, known: list[str], colours: dict[str, str]) -> Any:
    """A bar a part, and a line across it where it would end if every token were felt alike."""
    data = table[["part", "tokens", "share", "total"]].assign(alike=table["tokens"] / table["tokens"].sum())
    base = draw.rows(data)
    y = alt.Y(
        "part:N", title=None, scale=alt.Scale(domain=known), axis=alt.Axis(labelLimit=0, ticks=False, domain=False)
    )
    x = alt.X("share:Q", title="share of the sum (line: share of the tokens)", axis=alt.Axis(format=".0%", tickCount=5))
    tooltip = ["part:N", "tokens:Q", alt.Tooltip("share:Q", format=".1%"), alt.Tooltip("alike:Q", format=".1%")]
    bars = base.mark_bar(height=ROW / 2).encode(x=x, y=y, color=_hue(colours), tooltip=tooltip)
    marks = base.mark_tick(thickness=2, size=ROW * 0.8, color=theme.INK).encode(x="alike:Q", y=y, tooltip=tooltip)
    return draw.layers(bars, marks, width=230, height=ROW * len(known))


def _means(table: Frame, known: list[str], colours: dict[str, str]) -> Any:
    data = table[["part", "tokens", "mean"]].rename(columns={"mean": "value"})
    floored, floor = axes.floored(data)
    y = alt.Y(
        "part:N",
        title=None,
        scale=alt.Scale(domain=known),
        axis=alt.Axis(labels=False, ticks=False, domain=False, grid=True),
    )
    scale, axis = axes.log_axis(floored["shown"], floor)
    x = alt.X("shown:Q", title="mean norm per token", scale=scale, axis=axis)
    base = axes.chart(floored).encode(x=x, y=y, tooltip=["part:N", "tokens:Q", draw.VALUE])
    return axes.unfolded(base.mark_circle(size=70, opacity=1).encode(color=_hue(colours)), floored).properties(
        width=200, height=ROW * len(known)
    )


def _hue(colours: dict[str, str]) -> alt.Color:
    """Without a legend: the rows below name the parts."""
    scale = alt.Scale(domain=list(colours), range=list(colours.values()))
    return alt.Color("part:N", scale=scale, legend=None)
