"""What the last token attends to: the numbers, a heat map of every head, and circuitsvis' interactive view.

Cost: one forward pass; of each layer's pattern only the last row and a reduced square are kept. circuitsvis is handed a script
that cannot be broken out of: it does not escape `</script>` itself.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

import hooks
from ostools.errors import InputError
from ostools.models import Prompt
from ostools.reporting.frames import Frame
from ostools.reporting.theme import display_token, inert

SIDE = 64
"""Rows and columns of the squares that circuitsvis draws: longer prompts are max-pooled to at most this."""
COLUMNS = 192
"""Columns of the heat map: longer prompts are max-pooled to at most this."""
HEADS = 32
"""How many heads circuitsvis gets; of a model with more, those whose last row is the most concentrated."""


@dataclass(frozen=True, eq=False)
class Attention:
    """The attention of one prompt's last token.

    last: its weights in every layer and head. squares: the whole patterns, positions max-pooled into `bins` (start, end,
    end excluded), of which the last holds the last token alone: the last row of a square is its own.
    """

    tokens: tuple[str, ...]
    last: Float[Tensor, "layer head key"]
    squares: Float[Tensor, "layer head bin_query bin_key"]
    bins: tuple[tuple[int, int], ...]


def last_token_attention(model: TransformerBridge, prompt: Prompt) -> Attention:
    """Capture the patterns of one forward pass, each layer reduced as it appears. Non-finite ones are refused (InputError)."""
    bins = bins_of(len(prompt.ids), SIDE)

    def reduce(pattern: Tensor, layer: int | None) -> tuple[Tensor, Tensor]:
        pattern = pattern[0].float().cpu()
        return pattern[:, -1], max_pool(max_pool(pattern, bins), bins, dim=-2)

    device = next(model.parameters()).device
    with torch.no_grad(), hooks.capture(model, "pattern", reduce=reduce) as record:
        model(prompt.ids[None].to(device))
    kept = [record["pattern"][layer] for layer in sorted(record["pattern"])]
    last, squares = torch.stack([row for row, _ in kept]), torch.stack([square for _, square in kept])
    if not bool(torch.isfinite(squares).all()):
        raise InputError(
            "the attention weights on this prompt are not finite: the model's weights or its dtype are broken"
        )
    return Attention(prompt.tokens, last, squares, bins)


def bins_of(length: int, most: int) -> tuple[tuple[int, int], ...]:
    """Consecutive positions in at most `most` bins of equal width (the first may be narrower), the last position alone."""
    width = max(1, math.ceil((length - 1) / (most - 1)))
    starts = range((length - 1) % width - width if (length - 1) % width else 0, length - 1, width)
    return (*((max(start, 0), start + width) for start in starts), (length - 1, length))


def max_pool(values: Tensor, bins: tuple[tuple[int, int], ...], dim: int = -1) -> Tensor:
    """The greatest value of each bin along one dimension."""
    return torch.stack([values.narrow(dim, start, end - start).amax(dim) for start, end in bins], dim=dim)


def pooling_rule(length: int, most: int) -> str:
    """How positions were reduced, in words; empty where they were not."""
    bins = bins_of(length, most)
    if len(bins) == length:
        return ""
    width = max(end - start for start, end in bins)
    return f"{length} positions are max-pooled to {len(bins)}: {width} neighbours in one, the last token alone"


def bin_label(tokens: tuple[str, ...], start: int, end: int) -> str:
    """The token of a bin of one, else its first token and the positions."""
    word = display_token(tokens[start])
    return f"{word} {start}" if end - start == 1 else f"{word}… {start}–{end - 1}"


def attention_findings(attention: Attention) -> list[str]:
    """Where the last token looks, measured: on the first token, on itself, how widely, and the sharpest head."""
    last = attention.last.double()
    n = last.shape[-1]
    entropy = torch.special.entr(last).sum(-1)
    spread = entropy.exp()
    first, itself = float(last[..., 0].mean()), float(last[..., -1].mean())
    layer, head = divmod(int(entropy.argmin()), last.shape[1])
    target = int(last[layer, head].argmax())
    said = [
        f"Measured over all layers and heads, the last token puts {first:.1%} of its attention on the first token and "
        f"{itself:.1%} on itself (even attention over the {n} tokens would put {1 / n:.1%} on each); a head spreads over "
        f"{float(spread.median()):.1f} tokens in the median (exponential of the entropy).",
        f"The most concentrated head is layer {layer}, head {head}: {float(last[layer, head, target]):.0%} on token {target} "
        f"“{display_token(attention.tokens[target])}”.",
    ]
    if first >= 0.3:
        said.append("So much on the first token, whatever stands there, is known as an attention sink.")
    return said


def attention_frame(attention: Attention) -> Frame:
    """The heat map's cells, one a layer, head and (bin of) position: head, start, end, token, weight."""
    bins = bins_of(attention.last.shape[-1], COLUMNS)
    labels = [inert(bin_label(attention.tokens, start, end)) for start, end in bins]
    weights = max_pool(attention.last, bins).tolist()
    return pd.DataFrame(
        [
            {"head": f"{layer}.{head}", "start": start, "end": end, "token": label, "weight": weight}
            for layer, heads in enumerate(weights)
            for head, row in enumerate(heads)
            for (start, end), label, weight in zip(bins, labels, row, strict=True)
        ]
    )


def interactive_view(attention: Attention, element: str) -> tuple[str, str]:
    """circuitsvis' heads view as a script that draws into the element of that id, and the words that say what it holds."""
    from circuitsvis.attention import attention_heads

    layers, heads = attention.last.shape[:2]
    chosen, words = _chosen(attention)
    squares = attention.squares.flatten(0, 1)[chosen]
    rendered = attention_heads(
        attention=np.round(squares.double().numpy(), 3),
        tokens=_view_labels(attention),
        attention_head_names=[f"L{index // heads} H{index % heads}" for index in chosen],
        max_value=1.0,
        min_value=0.0,
    )
    rule = pooling_rule(attention.last.shape[-1], SIDE)
    return _script(rendered.local_src, element), f"{words} of {layers} layers{'; ' + rule if rule else ''}."


def _view_labels(attention: Attention) -> list[str]:
    """What circuitsvis writes beside rows and columns; it adds their number, which is the position where none were pooled."""
    if len(attention.bins) == len(attention.tokens):
        return [display_token(token) for token in attention.tokens]
    return [bin_label(attention.tokens, start, end) for start, end in attention.bins]


def _chosen(attention: Attention) -> tuple[list[int], str]:
    """The indices (layer * heads + head) that circuitsvis gets, and how they were chosen."""
    entropy = torch.special.entr(attention.last.double()).sum(-1).flatten()
    if len(entropy) <= HEADS:
        return list(range(len(entropy))), f"All {len(entropy)} heads"
    keep = sorted(entropy.argsort()[:HEADS].tolist())
    return keep, f"The {HEADS} heads of {len(entropy)} whose last row is the most concentrated,"


def _script(source: str, element: str) -> str:
    """The script inside circuitsvis' own HTML, pointed at `element`, with its data made inert.

    The source is `<div id=...> <script ...> library, CircuitsVis.render(id, element, data) </script>`, and the data hold
    tokens as they are. The first call in the source is the real one: whatever a token says comes after it.
    """
    found = re.match(r'<div id="(circuits-vis-[0-9a-f-]+)"', source)
    start = source.index(">", source.index("<script")) + 1
    end = source.rindex("</script>")
    if found is None or start > end:
        raise RuntimeError(
            "circuitsvis' HTML is not of the form this version of ostools knows; pin circuitsvis==1.43.*"
        )
    call = source.index(f'CircuitsVis.render(\n      "{found[1]}"', start)
    data = source[call:end].replace("<", "\\u003c").replace(">", "\\u003e")
    return source[start:call] + data.replace(f'"{found[1]}"', f'"{element}"', 1)
