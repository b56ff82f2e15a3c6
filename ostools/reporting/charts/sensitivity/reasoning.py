"""Sensitivity along a chain of thought: token by token above, part by part below."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt

from ostools.experiments.reasoning.chain_of_thought import ChainOfThought
from ostools.experiments.reasoning.written import BY_MODEL, LINE_APPENDED, PARTS
from ostools.ground.names import known_norm
from ostools.ground.words import short_name
from ostools.reporting.charts.sensitivity.over_tokens import NORMS
from ostools.reporting.forms.bars import bars, names
from ostools.reporting.forms.curve import curve, fitted
from ostools.reporting.forms.profile import of_tokens
from ostools.reporting.look import axes, draw, theme
from ostools.results import Frame, frame_of

WIDTH, HEIGHT, ROW = 640, 200, 24


def chain_of_thought_chart(result: ChainOfThought) -> Any:
    """Above: the norm of d y_n / d v_i for every token (the operator norm, or a sketch's Frobenius norm), coloured by its part.
    Below: each part's share of the sum, beside its share of the tokens, and its mean per token. Of the first linearisation
    measured.
    """
    frame: Frame = frame_of(result)
    table: Frame = result.summary
    name = str(frame["linearisation"].iloc[0])
    frame = frame[frame["linearisation"] == name]
    norm = known_norm(frame["method"])
    table = table[(table["linearisation"] == name) & (table["norm"] == norm)]
    known = [part for part in PARTS if (frame["part"] == part).any()]
    # Without a legend: the rows below name the parts.
    hues = alt.Scale(domain=known, range=[theme.colour(part) for part in known])
    lines = frame["line"].astype("float64")
    rows, y = fitted(
        of_tokens(frame, series=frame["part"], line=lines, value=frame[f"{norm}_norm"]), f"{NORMS[norm]} ({name})"
    )
    hue = alt.Color("series:N", scale=hues, legend=None)
    x = axes.token_axis(frame["token"].map(str).tolist())
    told = ["position:Q", "token:N", "series:N", "line:Q"]
    tokens = draw.layers(*curve(rows, x, y, hue, width=0, points=22, tooltip=told), width=WIDTH, height=HEIGHT)
    below = _parts(table.assign(name=table["part"]), known, alt.Color("name:N", scale=hues, legend=None))
    parameters = result.provenance.parameters
    answer, right = (theme.shown(parameters[f"{which}_token"]) for which in ("answer", "right"))
    notes = [f"{_source(parameters)}. Next comes {answer}; the right one is {right}."]
    notes += ["Norms are estimated."] if set(frame["method"]) != {"exact"} else []
    asked = f"{parameters['task']}, {parameters['length']} items"
    title = f"Sensitivity of the answer to prompt and reasoning: {asked}, on {short_name(result.provenance.model)}"
    return draw.figure([[tokens], below], title, notes)


def _source(parameters: Mapping[str, Any]) -> str:
    """Whose the reasoning and the begun line are."""
    source, some = parameters["reasoning_source"], bool(parameters["reasoning"])
    if source == BY_MODEL:
        return "The model wrote the reasoning and began the answer line" if some else "The model began the answer line"
    if source == LINE_APPENDED:
        what = "the reasoning" if some else "nothing"
        return f"The model wrote {what}; the answer line was begun for it"
    return "The reasoning was given" if some else "No reasoning; the answer line was begun"


def _parts(table: Frame, known: list[str], hue: Any) -> list[Any]:
    """Shares of the sum, a line across each where it would end if every token were felt alike; and means per token."""
    rows = table[["name", "tokens", "total"]].assign(
        value=table["share"], alike=table["tokens"] / table["tokens"].sum()
    )
    title = "share of the sum (line: share of the tokens)"
    value = {"title": title, "axis": alt.Axis(format=".0%", tickCount=5)}
    told = ["name:N", "tokens:Q", alt.Tooltip("alike:Q", format=".1%")]
    marks = bars(rows, names(known, domain=False), value, hue, tooltip=told, height=ROW / 2)
    alike = draw.rows(rows).mark_tick(thickness=2, size=ROW * 0.8, color=theme.INK)
    marks.append(alike.encode(x="alike:Q", y=names(known, domain=False), tooltip=told))
    shares = draw.layers(*marks, width=230, height=ROW * len(known))
    means, y = fitted(table[["name", "tokens"]].assign(value=table["mean"]), "mean norm per token")
    axis = names(known, labels=False, domain=False, grid=True)
    marks = bars(means, axis, y, hue, size=70, shape=alt.value("circle"), tooltip=["name:N", "tokens:Q"])
    return [shares, draw.layers(*marks, width=200, height=ROW * len(known))]
