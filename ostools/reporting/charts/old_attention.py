"""Attention as heat maps, the scores of all heads, and sentences about them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from ostools.ground.pooling import Bins, bins_of, max_pool, pooling_rule
from ostools.measure.attention.attention import Attention
from ostools.measure.attention.difference import AttentionDifference
from ostools.measure.attention.heads import HeadScores
from ostools.models.chat import TEMPLATE, TEXT
from ostools.reporting.findings import present
from ostools.reporting.findings.position import where_read
from ostools.reporting.forms import gradient, heat, layers_by
from ostools.reporting.style import axes, draw
from ostools.reporting.style.prompt import mark_template, template_note, template_positions
from ostools.reporting.style.theme import COLOURS, display_token, inert
from ostools.results import Chart, Column, Frame

LESS, MORE = COLOURS["frozen"], COLOURS["full"]
"""Of a difference: less in the second, more in it."""
COLUMNS = 192
"""Columns of the heat map: longer prompts are max-pooled to at most this."""
ROWS = 128
"""Rows of the heat map: of more heads those whose last row is the most concentrated, or differs the
most.
"""


SHARPEST, DIFFERS = "whose last row is the most concentrated", "whose last row differs the most"
"""How heads are chosen, in words."""


def attention_findings(attention: Attention) -> list[str]:
    """Where the last token looks, measured: on the first token, on itself, how widely, and the
    sharpest head.
    """
    last = attention.last.double()
    n = last.shape[-1]
    entropy = torch.special.entr(last).sum(-1)
    first, itself = float(last[..., 0].mean()), float(last[..., -1].mean())
    layer, head = divmod(int(entropy.argmin()), last.shape[1])
    target = int(last[layer, head].argmax())
    origins = attention.origins or ("",) * n
    frames = [", one of the chat template's" * (origin == TEMPLATE) for origin in origins]
    of_text = torch.tensor([origin == TEXT for origin in origins])
    on_text = float(last[..., of_text].sum(-1).mean())
    return present(
        where_read(attention.provenance.parameters),
        f"Measured over all layers and heads, the last token puts {first:.1%} of its attention on the first token and "
        f"{itself:.1%} on itself (even attention over the {n} tokens would put {1 / n:.1%} on each); a head spreads over "
        f"{float(entropy.exp().median()):.1f} tokens in the median (exponential of the entropy).",
        f"The most concentrated head is layer {layer}, head {head}: {float(last[layer, head, target]):.0%} on token {target} "
        f"“{display_token(attention.tokens[target])}”{frames[target]}.",
        f"So much on the first token{frames[0]}, whatever stands there, is known as an attention sink."
        if first >= 0.3
        else "",
        f"Of the last token's attention {on_text:.1%} is on the {int(of_text.sum())} tokens of the text, the rest on the "
        f"{int((~of_text).sum())} others: a sink among those is no finding about the text."
        if template_positions(attention.frame)
        else "",
    )


def difference_findings(difference: AttentionDifference) -> list[str]:
    """How much attention moved between the two, and where the most, measured."""
    frame: Frame = difference.frame
    size: Column = frame["difference"].abs()
    shifts: Any = size.groupby([frame["layer"], frame["head"]]).sum() / 2
    row = frame.loc[frame["difference"].abs().idxmax()]
    layer, head = shifts.idxmax()
    count = len(difference.pairs)
    first, second = (len(side.tokens) for side in (difference.first, difference.second))
    share = f" (of {first} in the first, {second} in the second)"
    return [
        f"Measured over the {count} tokens held against each other{'' if first == second == count else share}: the median head "
        f"moves {shifts.median():.1%} of the last token's attention (half the sum of |second - first| over them); layer "
        f"{layer}, head {head} the most, {shifts.max():.1%}.",
        f"The greatest change is in layer {row['layer']}, head {row['head']}, on token {row['second_position']} "
        f"“{display_token(row['token'])}”: from {row['first']:.3f} to {row['second']:.3f}.",
    ]


def bin_label(tokens: Sequence[str], start: int, end: int) -> str:
    """The token of a bin of one, else its first token and the positions."""
    word = display_token(tokens[start])
    return f"{word} {start}" if end - start == 1 else f"{word}… {start}–{end - 1}"


def sharpest(last: Float[Tensor, "layer head key"], most: int) -> list[int]:
    """The heads (layer * heads + head) whose rows are the most concentrated, at most so many, in
    the model's order.
    """
    return _least(torch.special.entr(last.double()).sum(-1).flatten(), most)


def most_moved(difference: AttentionDifference, most: int) -> list[int]:
    """The heads whose rows differ the most, at most so many, in the model's order."""
    frame: Frame = difference.frame
    size: Column = frame["difference"].abs()
    shifts: Any = -size.groupby([frame["layer"], frame["head"]]).sum()
    return _least(torch.tensor(shifts.to_numpy()), most)


def _least(scores: Tensor, most: int) -> list[int]:
    return sorted(scores.argsort(stable=True)[:most].tolist())


def attention_frame(attention: Attention, head_indices: Sequence[int] | None = None) -> Frame:
    """The heat map's cells, one a head and (bin of) position: head, start, end, token, weight.

    head_indices: the heads as layer * heads + head; by default those that the heat map shows.
    """
    bins = bins_of(len(attention.tokens), COLUMNS)
    labels = [inert(bin_label(attention.tokens, start, end)) for start, end in bins]
    heads = sharpest(attention.last, ROWS) if head_indices is None else list(head_indices)
    return cells(max_pool(attention.last, bins), heads, bins, labels)


def cells(
    values: Float[Tensor, "layer head bin"], heads: Sequence[int], bins: Bins, labels: Sequence[str]
) -> Frame:
    """One row a head and bin."""
    table = pd.DataFrame(values.flatten(0, 1)[list(heads)].numpy())
    table.index = [f"{index // values.shape[1]}.{index % values.shape[1]}" for index in heads]
    rows = table.rename_axis("head").reset_index().melt("head", var_name="bin", value_name="weight")
    places = pd.DataFrame(
        {"start": [s for s, _ in bins], "end": [e for _, e in bins], "token": labels}
    )
    return rows.join(places, on="bin").drop(columns="bin")


def heads_rule(total: int, most: int, how: str) -> str:
    """How heads were chosen, in words; empty where all are shown."""
    return "" if total <= most else f"the {most} heads of {total} {how}"


_WIDTH, _HEIGHT, _LOWEST = 620, 480, 3
_WEIGHT = alt.Color(
    "value:Q",
    scale=alt.Scale(type="sqrt", scheme="viridis", domain=[0, 1]),
    legend=gradient(
        "attention weight (square-root scale)", format=".2~f", values=[0, 0.05, 0.2, 0.5, 1]
    ),
)


def attention_chart(attention: Attention) -> Chart:
    """The last token's attention weight on every token, one row per layer and head (`layer.head`),
    first layer on top.

    The colour scale runs with the square root of the weight, so that small weights are seen too.
    """
    panel = _map(attention_frame(attention), _WEIGHT, attention)
    return draw.figure([[panel]], "Attention of the last token", _rules(attention, SHARPEST))


def attention_difference_chart(difference: AttentionDifference) -> Chart:
    """Both heat maps on one colour scale, and the second less the first at the tokens that have a
    partner (else grey).
    """
    head_indices = most_moved(difference, ROWS)
    sides = (difference.first, difference.second)
    panels: list[list[Any]] = []
    for attention, label in zip(sides, difference.labels, strict=True):
        title = alt.TitleParams(label, subtitle=_rules(attention, DIFFERS))
        panel = _map(attention_frame(attention, head_indices), _WEIGHT, attention)
        panels.append([panel.properties(title=title)])
    data = _difference_frame(difference, head_indices)
    most = max(float(data["weight"].abs().max()), 1e-6)
    legend = gradient(
        "weight of the second less that of the first (square-root scale)", format="+.2~g"
    )
    scale = alt.Scale(type="sqrt", range=[LESS, "#f2f2f2", MORE], domain=[-most, 0, most])
    difference_map = _map(data, alt.Color("value:Q", scale=scale, legend=legend), difference.second)
    blank = len(difference.pairs) < len(difference.second.tokens)
    words = f"at the {len(difference.pairs)} tokens held against each other; blue: more in the second, red: less"
    words += "; blank: the second's alone" * blank
    panels.append([difference_map.properties(title=alt.TitleParams("Difference", subtitle=words))])
    return draw.figure(
        panels, "Attention of the last token, compared", between=22, color="independent"
    )


def _map(data: Frame, colour: alt.Color, attention: Attention) -> Any:
    """One heat map, its cells as wide as the positions in them; `attention`: whose tokens stand
    below.
    """
    labels, heads = attention.tokens, list(dict.fromkeys(data["head"]))
    # Whole pixels a cell: else light seams show between them.
    width = len(labels) * max(1, _WIDTH // len(labels)) if len(labels) <= _WIDTH else _WIDTH
    height = len(heads) * max(_LOWEST, min(12, _HEIGHT // len(heads)), math.ceil(120 / len(heads)))
    x = alt.X(
        "start:Q", scale=alt.Scale(domain=[0, len(labels)], nice=False), axis=_token_axis(attention)
    )
    y = alt.Y(
        "head:N", sort=heads, title="layer.head", axis=alt.Axis(labelOverlap=True, ticks=False)
    )
    marks = heat(data.rename(columns={"weight": "value"}), x, y, colour, x2="end")
    chart = mark_template(alt.layer(*marks), template_positions(attention.frame), height, 0.0)
    return chart.properties(width=width, height=height)


def _token_axis(attention: Attention) -> alt.Axis:
    """Each token under the middle of its column, where there is room for all of them; the chat
    template's pale.
    """
    tokens = attention.tokens
    if len(tokens) > axes.TOKENS_NAMED:
        return alt.Axis(grid=False, tickMinStep=1, title="position of the token attended to")
    aside = [place + 0.5 for place in template_positions(attention.frame)]
    axis = axes.token_axis([*map(display_token, tokens)], aside=aside, ticks=False)["axis"]
    axis.title = "token attended to, and its position"
    axis.values = [place + 0.5 for place in range(len(tokens))]
    axis.labelExpr = axis.labelExpr.replace("datum.value", "datum.value - 0.5")
    return axis


def _difference_frame(difference: AttentionDifference, head_indices: list[int]) -> Frame:
    """The difference where the second's tokens stand; of the pairs that share a cell the one
    furthest from zero, with its sign.
    """
    tokens, frame = difference.second.tokens, difference.frame
    layers, heads = difference.second.squares.shape[:2]
    places = torch.tensor([second_place for _, second_place in difference.pairs])
    values = torch.tensor(frame["difference"].to_numpy()).reshape(layers, heads, len(places))
    filled, pooled = [], []
    for start, end in bins_of(len(tokens), COLUMNS):
        part = values[..., (places >= start) & (places < end)]
        if part.shape[-1]:
            filled.append((start, end))
            pooled.append(part.gather(-1, part.abs().argmax(-1, keepdim=True)).squeeze(-1))
    labels = [inert(bin_label(tokens, start, end)) for start, end in filled]
    return cells(torch.stack(pooled, dim=-1), head_indices, tuple(filled), labels)


def _rules(attention: Attention, how: str) -> list[str]:
    """How positions and heads were reduced, a line each."""
    heads = attention.last.shape[0] * attention.last.shape[1]
    rules = [
        rule
        for rule in (pooling_rule(len(attention.tokens), COLUMNS), heads_rule(heads, ROWS, how))
        if rule
    ]
    return rules + template_note(template_positions(attention.frame))


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
_MOST_NUMBERED = 8  # more heads than that get no number in their cell


def heads_chart(result: HeadScores) -> Chart:
    """Every score is a share between 0 and 1, on one colour scale; means over queries, and over the
    prompts.
    """
    summary: Frame = result.summary
    prompts: Frame = result.frame
    heads, layers = int(summary["head"].max()) + 1, int(summary["layer"].max()) + 1
    size = (min(30 * heads, 260), min(24 * layers, 420))
    looks: dict[str, Any] = {"digits": ".2f" if heads <= _MOST_NUMBERED else ""}
    panels = []
    for name, title in PANELS.items():
        scores = summary[["layer", "head"]].assign(value=summary[name].astype(float)).dropna()
        if len(scores):
            scale = alt.Scale(scheme="viridis", domain=[0, 1])
            panels.append(draw.panel(layers_by(scores, "head", scale, **looks), *size, title))
    count = int(prompts["prompt"].nunique())
    where = f"one prompt of {prompts['tokens'].iloc[0]} tokens"
    where = f"mean over {count} prompts" if count > 1 else where
    chart: Any = alt.concat(*panels, columns=_PANELS_A_ROW, spacing=24)
    return draw.figure([[chart]], f"Where the attention heads look, {where}")
