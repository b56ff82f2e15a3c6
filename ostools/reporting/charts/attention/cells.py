"""What is said and drawn of attention: findings, the heat maps' cells, and the labels of tokens that share a cell."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from ostools.ground.pooling import Bins, bins_of, max_pool
from ostools.measure.attention.attention import Attention
from ostools.measure.attention.difference import AttentionDifference
from ostools.models.chat import TEMPLATE, TEXT
from ostools.reporting.look.aside import aside
from ostools.reporting.look.theme import COLOURS, display_token, inert
from ostools.results import Frame

LESS, MORE = COLOURS["frozen"], COLOURS["full"]
"""Of a difference: less in the second, more in it."""
COLUMNS = 192
"""Columns of the heat map: longer prompts are max-pooled to at most this."""
ROWS = 128
"""Rows of the heat map: of more heads those whose last row is the most concentrated, or differs the most."""


def attention_findings(attention: Attention) -> list[str]:
    """Where the last token looks, measured: on the first token, on itself, how widely, and the sharpest head."""
    last = attention.last.double()
    n = last.shape[-1]
    entropy = torch.special.entr(last).sum(-1)
    spread = entropy.exp()
    first, itself = float(last[..., 0].mean()), float(last[..., -1].mean())
    layer, head = divmod(int(entropy.argmin()), last.shape[1])
    target = int(last[layer, head].argmax())
    origins = attention.origins or ()
    said = [
        f"Measured over all layers and heads, the last token puts {first:.1%} of its attention on the first token and "
        f"{itself:.1%} on itself (even attention over the {n} tokens would put {1 / n:.1%} on each); a head spreads over "
        f"{float(spread.median()):.1f} tokens in the median (exponential of the entropy).",
        f"The most concentrated head is layer {layer}, head {head}: {float(last[layer, head, target]):.0%} on token {target} "
        f"“{display_token(attention.tokens[target])}”{_frames(origins, target)}.",
    ]
    if first >= 0.3:
        said.append(
            f"So much on the first token{_frames(origins, 0)}, whatever stands there, is known as an attention sink."
        )
    if aside(attention.frame):
        text = torch.tensor([origin == TEXT for origin in origins])
        said.append(
            f"Of the last token's attention {float(last[..., text].sum(-1).mean()):.1%} is on the {int(text.sum())} tokens of "
            f"the text, the rest on the {int((~text).sum())} others: a sink among those is no finding about the text."
        )
    return said


def _frames(origins: Sequence[str], target: int) -> str:
    """That a token is the chat template's, where it is."""
    return ", one of the chat template's" if origins and origins[target] == TEMPLATE else ""


def difference_findings(difference: AttentionDifference) -> list[str]:
    """How much attention moved between the two, and where the most, measured."""
    frame: Frame = difference.frame
    moved = frame.groupby(["layer", "head"])["difference"].agg(lambda values: values.abs().sum() / 2)
    row = frame.loc[frame["difference"].abs().idxmax()]
    layer, head = moved.idxmax()
    count, lengths = len(difference.pairs), [len(one.tokens) for one in (difference.first, difference.second)]
    share = "" if lengths == [count, count] else f" (of {lengths[0]} in the first, {lengths[1]} in the second)"
    return [
        f"Measured over the {count} tokens held against each other{share}: the median head moves {moved.median():.1%} of the "
        f"last token's attention (half the sum of |second - first| over them); layer {layer}, head {head} the most, "
        f"{moved.max():.1%}.",
        f"The greatest change is in layer {row['layer']}, head {row['head']}, on token {row['second_position']} "
        f"“{display_token(row['token'])}”: from {row['first']:.3f} to {row['second']:.3f}.",
    ]


def bin_label(tokens: Sequence[str], start: int, end: int) -> str:
    """The token of a bin of one, else its first token and the positions."""
    word = display_token(tokens[start])
    return f"{word} {start}" if end - start == 1 else f"{word}… {start}–{end - 1}"


def sharpest(last: Float[Tensor, "layer head key"], most: int) -> list[int]:
    """The heads (layer * heads + head) whose rows are the most concentrated, at most so many, in the model's order."""
    return _least(torch.special.entr(last.double()).sum(-1).flatten(), most)


def most_moved(difference: AttentionDifference, most: int) -> list[int]:
    """The heads whose rows differ the most, at most so many, in the model's order."""
    moved = difference.frame.groupby(["layer", "head"])["difference"].agg(lambda values: -values.abs().sum())
    return _least(torch.tensor(moved.to_numpy()), most)


def _least(scores: Tensor, most: int) -> list[int]:
    return sorted(scores.argsort(stable=True)[:most].tolist())


def attention_frame(attention: Attention, chosen: Sequence[int] | None = None) -> Frame:
    """The heat map's cells, one a head and (bin of) position: head, start, end, token, weight.

    `chosen`: the heads as layer * heads + head; by default those that the heat map shows.
    """
    bins = bins_of(len(attention.tokens), COLUMNS)
    labels = [inert(bin_label(attention.tokens, start, end)) for start, end in bins]
    heads = sharpest(attention.last, ROWS) if chosen is None else list(chosen)
    return cells(max_pool(attention.last, bins), heads, bins, labels)


def cells(values: Float[Tensor, "layer head bin"], heads: Sequence[int], bins: Bins, labels: Sequence[str]) -> Frame:
    """One row a head and bin."""
    count = values.shape[1]
    table = values.flatten(0, 1)[list(heads)]
    return pd.DataFrame(
        {
            "head": [f"{index // count}.{index % count}" for index in heads for _ in bins],
            "start": [start for start, _ in bins] * len(heads),
            "end": [end for _, end in bins] * len(heads),
            "token": list(labels) * len(heads),
            "weight": table.flatten().tolist(),
        }
    )


def heads_rule(total: int, most: int, how: str = "whose last row is the most concentrated") -> str:
    """How heads were chosen, in words; empty where all are shown."""
    return "" if total <= most else f"the {most} heads of {total} {how}"
