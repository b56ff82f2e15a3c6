"""Attention as heat maps, the scores of all heads, sentences about them, and patterns to click
through, drawn by circuitsvis, on a page that can ask the network for nothing.

circuitsvis is handed what it needs and nothing of its own display is used: that probes a search
engine, and loads a script from a content delivery network where it finds one. Nor does it escape
`</script>`: its data are made inert here. A page holds its library once (1.3 MB), and per attention
at most 32 heads of 64 x 64 weights, to three digits (0.8 MB).
"""

import math
import re
from collections.abc import Sequence

import altair as alt
import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from ostools.measure import Attention, HeadScores
from ostools.measure.attention.attention import bins_of, max_pool
from ostools.models.chat import TEXT
from ostools.reporting.findings import present, where_read
from ostools.reporting.forms import gradient, heat, layers_by
from ostools.reporting.page.page import Script
from ostools.reporting.page.section import Part, ScriptView
from ostools.reporting.style import axes, draw, theme
from ostools.reporting.style.theme import display_token, inert, short_word
from ostools.results import Chart, Frame

COLUMNS = 192
"""Columns of the heat map: longer prompts are max-pooled to at most this."""
ROWS = 128
"""Rows of the heat map: of more heads those whose last row is the most concentrated."""


def attention_findings(attention: Attention) -> list[str]:
    """Where the last token looks, measured: on the first token, on itself, how widely, and the
    sharpest head; in a chat how much of it is on the text.
    """
    last = attention.last.double()
    entropy = torch.special.entr(last).sum(-1)
    layer, head = divmod(int(entropy.argmin()), last.shape[1])
    target = int(last[layer, head].argmax())
    on_tokens = last.flatten(0, 1).mean(0)
    of_text = torch.tensor([origin == TEXT for origin in attention.origins or ()])
    return present(
        where_read(attention.provenance.parameters),
        f"Measured over all layers and heads, the last token puts {float(on_tokens[0]):.1%} of its "
        f"attention on the first token and {float(on_tokens[-1]):.1%} on itself (even attention "
        f"would put {1 / len(on_tokens):.1%} on each); a head spreads over "
        f"{float(entropy.exp().median()):.1f} tokens in the median (exponential of the entropy).",
        f"The most concentrated head is layer {layer}, head {head}: "
        f"{float(last[layer, head, target]):.0%} on token {target} "
        f"“{display_token(attention.tokens[target])}”.",
        f"Of the last token's attention {float(on_tokens[of_text].sum()):.1%} is on the "
        f"{int(of_text.sum())} tokens of the text, the rest on the others."
        if draw.template_positions(attention.frame)
        else "",
    )


def pooling_rule(length: int, most: int) -> str:
    """How positions were reduced, in words; empty where they were not."""
    bins = bins_of(length, most)
    if len(bins) == length:
        return ""
    width = max(end - start for start, end in bins)
    return (
        f"{length} positions are max-pooled to {len(bins)}: {width} neighbours in one, the last "
        "token alone"
    )


def bin_label(tokens: Sequence[str], start: int, end: int) -> str:
    """The token of a bin of one, else its first token and the positions."""
    word = display_token(tokens[start])
    return f"{word} {start}" if end - start == 1 else f"{word}… {start}–{end - 1}"


def sharpest(last: Float[Tensor, "layer head key"], most: int) -> list[int]:
    """The heads (layer * heads + head) whose rows are the most concentrated, at most so many, in
    the model's order.
    """
    entropies = torch.special.entr(last.double()).sum(-1).flatten()
    return sorted(entropies.argsort(stable=True)[:most].tolist())


def attention_frame(attention: Attention) -> Frame:
    """The heat map's cells, one a head that it shows and (bin of) position: head, start, end,
    token, weight.
    """
    tokens, last = attention.tokens, attention.last
    bins = bins_of(len(tokens), COLUMNS)
    labels = [inert(bin_label(tokens, start, end)) for start, end in bins]
    values, heads = max_pool(last, bins), sharpest(last, ROWS)
    table = pd.DataFrame(values.flatten(0, 1)[heads].numpy())
    table.index = [f"{index // values.shape[1]}.{index % values.shape[1]}" for index in heads]
    rows = table.rename_axis("head").reset_index().melt("head", var_name="bin", value_name="weight")
    places = pd.DataFrame(bins, columns=["start", "end"]).assign(token=labels)
    return rows.join(places, on="bin").drop(columns="bin")


def heads_rule(total: int, most: int) -> str:
    """How heads were chosen, in words; empty where all are shown."""
    rule = f"the {most} heads of {total} whose last row is the most concentrated"
    return "" if total <= most else rule


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
    Cells are as wide as the positions in them.
    """
    data, tokens = attention_frame(attention), attention.tokens
    count, total = len(tokens), math.prod(attention.squares.shape[:2])
    heads, aside = list(dict.fromkeys(data["head"])), draw.template_positions(attention.frame)
    # Whole pixels a cell: else light seams show between them.
    width = max(count * (_WIDTH // count), min(count, _WIDTH))
    height = len(heads) * max(_LOWEST, min(12, _HEIGHT // len(heads)), math.ceil(120 / len(heads)))
    x = axes.token_axis(dict(enumerate(map(short_word, tokens))), "start", aside)
    words = alt.Axis(labelOverlap=True, ticks=False)
    y = alt.Y("head:N", sort=heads, title="layer.head", axis=words)
    data = data.assign(start=data["start"] - 0.5, end=data["end"] - 0.5)
    cells = heat(data.rename(columns={"weight": "value"}), x, y, _WEIGHT, x2="end")
    panel = draw.mark_template(draw.panel(cells, width, height), aside, height)
    rules = (pooling_rule(count, COLUMNS), heads_rule(total, ROWS))
    notes = [*filter(None, rules), *draw.template_note(aside)]
    return draw.figure([[panel]], "Attention of the last token", notes)


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
    heads, layers = int(summary["head"].max()) + 1, int(summary["layer"].max()) + 1
    size = (min(30 * heads, 260), min(24 * layers, 420))
    scale = alt.Scale(scheme="viridis", domain=[0, 1])
    digits = ".2f" if heads <= _MOST_NUMBERED else ""
    panels = []
    for name, title in PANELS.items():
        scores = summary[["layer", "head"]].assign(value=summary[name].astype(float)).dropna()
        if len(scores):
            marks = layers_by(scores, "head", scale, digits=digits)
            panels.append(draw.panel(marks, *size, title))
    chart = alt.concat(*panels, columns=_PANELS_A_ROW, spacing=24)
    return draw.figure([[chart]], "Where the attention heads look, mean over queries and prompts")


HEADS = 32
"""How many heads circuitsvis gets; of a model with more, those whose last row is the most
concentrated.
"""


def interactive_view(attention: Attention, element: str) -> Part:
    """circuitsvis' heads view, drawn into the element of that id, and the words that say what it
    holds.
    """
    from circuitsvis.attention import attention_heads

    (layers, heads), tokens = attention.squares.shape[:2], attention.tokens
    rule = heads_rule(layers * heads, HEADS) or f"all {layers * heads} heads of {layers} layers"
    pooled = pooling_rule(len(tokens), len(attention.bins))
    notes = (
        f"{rule[0].upper()}{rule[1:]}. {f'{pooled}. ' if pooled else ''}Named layer.head; rows "
        "are queries, the last token's at the bottom, columns what they attend to."
    )
    # circuitsvis adds their number to the labels, which is the position where none were pooled.
    labels = [bin_label(tokens, start, end) for start, end in attention.bins]
    indices = sharpest(attention.last, HEADS)
    heads_html = attention_heads(
        attention=np.round(attention.squares.flatten(0, 1)[indices].double().numpy(), 3),
        tokens=labels if pooled else [theme.display_token(token) for token in tokens],
        attention_head_names=[f"{index // heads}.{index % heads}" for index in indices],
        max_value=1.0,
        min_value=0.0,
        positive_color=theme.colour("full"),
    )
    view = ScriptView(
        element,
        "Interactive attention patterns, drawn by circuitsvis",
        Script(_script(heads_html.local_src, element), "module"),
    )
    return Part("Head by head", notes=[notes], view=view)


def _script(source: str, element: str) -> str:
    """The script inside circuitsvis' own HTML, drawing into our element, its data made inert.

    The source is `<div id=...> <script ...> library, CircuitsVis.render(id, element, data)
    </script>`, and the data hold tokens as they are. The first call in the source is the real one:
    whatever a token says comes after it.
    """
    opening = re.match(r'<div id="(circuits-vis-[0-9a-f-]+)"', source)
    start, end = source.index(">", source.index("<script")) + 1, source.rindex("</script>")
    if opening is None or start > end:
        raise RuntimeError(
            "circuitsvis' HTML is not of the form this version of ostools knows; pin "
            "circuitsvis==1.43.*"
        )
    call = source.index(f'CircuitsVis.render(\n      "{opening[1]}"', start)
    data = source[call:end].replace("<", "\\u003c").replace(">", "\\u003e")
    return source[start:call] + data.replace(f'"{opening[1]}"', f'"{element}"', 1)
