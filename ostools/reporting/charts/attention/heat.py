"""Attention as heat maps: a row a head and a column a token, and the scores of all heads."""

from __future__ import annotations

import math
from typing import Any

import altair as alt
import torch

from ostools.ground.pooling import Bins, bins_of, pooling_rule
from ostools.measure.attention.attention import Attention
from ostools.measure.attention.difference import AttentionDifference
from ostools.measure.attention.heads import HeadScores
from ostools.reporting.charts.attention.cells import (
    COLUMNS,
    LESS,
    MORE,
    ROWS,
    attention_frame,
    bin_label,
    cells,
    heads_rule,
    most_moved,
)
from ostools.reporting.forms.heat import gradient, heat, layers_by
from ostools.reporting.look import axes, draw
from ostools.reporting.look.aside import aside, notes, underlined
from ostools.reporting.look.theme import display_token, inert
from ostools.results import Frame

_WIDTH, _HEIGHT, _LOWEST = 620, 480, 3
_WEIGHT = alt.Color(
    "value:Q",
    scale=alt.Scale(type="sqrt", scheme="viridis", domain=[0, 1]),
    legend=gradient("attention weight (square-root scale)", format=".2~f", values=[0, 0.05, 0.2, 0.5, 1]),
)


def attention_chart(attention: Attention) -> Any:
    """The last token's attention weight on every token, one row per layer and head (`layer.head`), first layer on top.

    The colour scale runs with the square root of the weight, so that small weights are seen too.
    """
    rules = _rules(attention, "whose last row is the most concentrated")
    return draw.figure([[_map(attention_frame(attention), _WEIGHT, attention)]], "Attention of the last token", rules)


def attention_difference_chart(difference: AttentionDifference) -> Any:
    """Both heat maps on one colour scale, and the second less the first at the tokens that have a partner (else grey)."""
    chosen = most_moved(difference, ROWS)
    panels: list[list[Any]] = []
    for attention, label in zip((difference.first, difference.second), difference.labels, strict=True):
        title = alt.TitleParams(label, subtitle=_rules(attention, "that differ the most"))
        panels.append([_map(attention_frame(attention, chosen), _WEIGHT, attention).properties(title=title)])
    data = _difference_frame(difference, chosen)
    most = max(float(data["weight"].abs().max()), 1e-6)
    legend = gradient("weight of the second less that of the first (square-root scale)", format="+.2~g")
    scale = alt.Scale(type="sqrt", range=[LESS, "#f2f2f2", MORE], domain=[-most, 0, most])
    shown = _map(data, alt.Color("value:Q", scale=scale, legend=legend), difference.second)
    alone = "; blank: the second's alone" if len(difference.pairs) < len(difference.second.tokens) else ""
    words = f"at the {len(difference.pairs)} tokens held against each other; blue: more in the second, red: less{alone}"
    panels.append([shown.properties(title=alt.TitleParams("Difference", subtitle=words))])
    return draw.figure(panels, "Attention of the last token, compared", between=22, color="independent")


def _map(data: Frame, colour: alt.Color, attention: Attention) -> Any:
    """One heat map, its cells as wide as the positions in them; `attention`: whose tokens stand below."""
    labels, heads = attention.tokens, list(dict.fromkeys(data["head"]))
    # Whole pixels a cell: else light seams show between them.
    width = len(labels) * max(1, _WIDTH // len(labels)) if len(labels) <= _WIDTH else _WIDTH
    height = len(heads) * max(_LOWEST, min(12, _HEIGHT // len(heads)), math.ceil(120 / len(heads)))
    x = alt.X("start:Q", scale=alt.Scale(domain=[0, len(labels)], nice=False), axis=_token_axis(attention))
    y = alt.Y("head:N", sort=heads, title="layer.head", axis=alt.Axis(labelOverlap=True, ticks=False))
    told = [alt.Tooltip("head:N", title="layer.head"), "token:N"]
    marks = heat(data.rename(columns={"weight": "value"}), x, y, colour, told, across="end")
    chart = underlined(alt.layer(*marks), aside(attention.frame), height, 0.0)
    return chart.properties(width=width, height=height)


def _token_axis(attention: Attention) -> alt.Axis:
    """Each token under the middle of its column, where there is room for all of them; the chat template's pale."""
    tokens = attention.tokens
    if len(tokens) > axes.TOKENS_NAMED:
        return alt.Axis(grid=False, tickMinStep=1, title="position of the token attended to")
    middles = [place + 0.5 for place in range(len(tokens))]
    words = [display_token(token) for token in tokens]
    return axes.named_places(
        words, middles, "token attended to, and its position", ticks=False, aside=aside(attention.frame)
    )


def _difference_frame(difference: AttentionDifference, chosen: list[int]) -> Frame:
    """The difference where the second's tokens stand; of the pairs that share a cell the one furthest from zero."""
    tokens = difference.second.tokens
    frame: Frame = difference.frame
    layers, heads = difference.second.squares.shape[:2]
    places = [other for _, other in difference.pairs]
    values = torch.tensor(frame["difference"].to_numpy()).reshape(layers, heads, len(places))
    column = {place: index for index, place in enumerate(places)}
    filled: Bins = tuple(
        (start, end)
        for start, end in bins_of(len(tokens), COLUMNS)
        if any(place in column for place in range(start, end))
    )
    pooled = [_furthest(values[..., [column[p] for p in range(start, end) if p in column]]) for start, end in filled]
    labels = [inert(bin_label(tokens, start, end)) for start, end in filled]
    return cells(torch.stack(pooled, dim=-1), chosen, filled, labels)


def _furthest(values: torch.Tensor) -> torch.Tensor:
    """Along the last dimension the value that is furthest from zero, with its sign."""
    return values.gather(-1, values.abs().argmax(-1, keepdim=True)).squeeze(-1)


def _rules(attention: Attention, how: str) -> list[str]:
    """How positions and heads were reduced, a line each."""
    heads = attention.last.shape[0] * attention.last.shape[1]
    rules = [rule for rule in (pooling_rule(len(attention.tokens), COLUMNS), heads_rule(heads, ROWS, how)) if rule]
    return rules + notes(aside(attention.frame))


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
_PANELS_A_ROW = 4
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
    scores: Any = alt.concat(*panels, columns=_PANELS_A_ROW, spacing=24)
    return draw.figure([[scores]], f"Where the attention heads look, {where}")
