"""Two attentions held against each other, token by token, where it is known which token of one is
which of the other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from ostools.ground.errors import InputError
from ostools.ground.words import title_of
from ostools.measure.attention.attention import Attention
from ostools.measure.measurement import measurement
from ostools.measure.prompts import partners
from ostools.results import Chart, Provenance, Result
from ostools.results.table_head import TableHead

Pairs = list[tuple[int, int]]


@dataclass(frozen=True, eq=False)
class AttentionDifference(Result):
    """The last tokens' weights of two attentions: one row is one layer, head and pair of tokens
    that are the same.

    Columns: layer, head, first_position, second_position, token, first, second (the weights),
    difference (second - first). Tokens without a partner are in `first` and `second` (the
    attentions) alone. `labels`: what tells the two apart.
    """

    tables: ClassVar = (
        TableHead(
            columns="layer head token first_position second_position first second difference",
            greatest="difference",
        ),
    )

    first: Attention
    second: Attention
    labels: tuple[str, str]

    @property
    def pairs(self) -> Pairs:
        """The positions held against each other: of the first, and of the second."""
        count = len(self.frame) // (self.second.squares.shape[0] * self.second.squares.shape[1])
        head = self.frame.iloc[:count]
        return list(
            zip(head["first_position"].tolist(), head["second_position"].tolist(), strict=True)
        )

    def chart(self) -> Chart:
        from ostools.reporting.charts.attention import attention_difference_chart

        return attention_difference_chart(self)

    def findings(self) -> list[str]:
        from ostools.reporting.charts.attention import difference_findings

        return difference_findings(self)


@measurement()
def attention_difference(
    first: Attention, second: Attention, *, corresponding: bool = False
) -> AttentionDifference:
    """The last token's attention weights in `second` minus those in `first`, head by head and token
    by token.

    The two may be two models with as many layers and heads, two prompts, or one prompt with and
    without a mitigation. Tokens are compared where it is known that they are the same:

    - all of them, if the two read the same tokens;
    - item by item of a task's sequence, if both know it (`attention(task=...)`), and the words
      before and after the sequence as far as they are the same, from either end. A token that a
      mitigation has inserted has no partner, and neither has a token that could have two;
    - position by position, if both have the same number of tokens: at each position at which the
      token is the same;
    - with `corresponding`, in place of all this: the tokens with which both texts begin, and those
      with which both end.

    Raises `InputError` if none of these holds, and for models of other shapes: look at each by its
    own `view()`.
    """
    pairs = aligned(first, second, corresponding)
    first_positions, second_positions = (list(positions) for positions in zip(*pairs, strict=True))
    frame: Any = pd.DataFrame(
        {
            "first_position": first_positions,
            "second_position": second_positions,
            "token": [second.tokens[position] for position in second_positions],
        }
    )
    layers, heads = first.squares.shape[:2]
    frame = pd.concat([frame] * (layers * heads), ignore_index=True)
    frame.insert(0, "layer", np.repeat(np.arange(layers), heads * len(pairs)))
    frame.insert(1, "head", np.tile(np.repeat(np.arange(heads), len(pairs)), layers))
    frame["first"] = first.last[..., first_positions].flatten().numpy()
    frame["second"] = second.last[..., second_positions].flatten().numpy()
    frame["difference"] = frame["second"] - frame["first"]
    labels = distinct_labels(first, second)
    return AttentionDifference(frame, _provenance(first, second, labels), first, second, labels)


def aligned(first: Attention, second: Attention, corresponding: bool = False) -> Pairs:
    """The positions (of the first, of the second) that hold the same token. Raises `InputError` as
    `attention_difference`.
    """
    if first.squares.shape[:2] != second.squares.shape[:2]:
        shapes = [
            f"{shape[0]} layers of {shape[1]} heads"
            for shape in (first.squares.shape, second.squares.shape)
        ]
        raise InputError(
            f"attention: expected as many layers and heads in both, found {shapes[0]} and {shapes[1]}: there is no telling "
            "which head is which: look at each by its own `view()`"
        )
    ours, theirs = first.tokens, second.tokens
    if corresponding:
        pairs = partners(ours, theirs)
    elif ours != theirs and _items(first) and _items(second):
        pairs = _by_item(first, second)
    elif len(ours) == len(theirs):
        pairs = [(place, place) for place, token in enumerate(ours) if token == theirs[place]]
    else:
        pairs = []
    if not pairs:
        raise InputError(
            f"attention: expected prompts whose tokens have partners, found {len(ours)} tokens and {len(theirs)}, and none "
            "known to be the same: ask both of a task with its length, or give corresponding=True"
        )
    return pairs


def _items(attention: Attention) -> dict[int, list[int]]:
    positions_by_item: dict[int, list[int]] = {}
    column: Any = attention.frame["item"].iloc[: len(attention.tokens)]
    for place, item in enumerate(column):
        if not pd.isna(item):
            positions_by_item.setdefault(int(item), []).append(place)
    return positions_by_item


def _by_item(first: Attention, second: Attention) -> Pairs:
    """The items' tokens, and those of the words before the first item and after the last that read
    the same.
    """
    ours, theirs = _items(first), _items(second)
    pairs: Pairs = []
    for item in sorted(set(ours) & set(theirs)):
        mine, second_positions = ours[item], theirs[item]
        if [first.tokens[place] for place in mine] == [
            second.tokens[place] for place in second_positions
        ]:
            pairs += zip(mine, second_positions, strict=True)
    before = partners(first.tokens[: ours[min(ours)][0]], second.tokens[: theirs[min(theirs)][0]])
    start, second_start = ours[max(ours)][-1] + 1, theirs[max(theirs)][-1] + 1
    after = partners(first.tokens[start:], second.tokens[second_start:])
    return [*before, *pairs, *((start + place, second_start + other) for place, other in after)]


def distinct_labels(first: Attention, second: Attention) -> tuple[str, str]:
    """Labels that tell two attentions apart, in a few words each: model, mitigation, edits, prompt."""
    ours, theirs = _described(first, "first"), _described(second, "second")
    differing = [name for name in ours if ours[name] != theirs[name]]
    if len(differing) > 1 and (first.tokens == second.tokens or "mitigation" in differing):
        differing.remove("prompt")
    return ", ".join(ours[name] for name in differing), ", ".join(
        theirs[name] for name in differing
    )


def _described(attention: Attention, which: str) -> dict[str, str]:
    model: Any = attention.provenance.model
    parameters, edits = attention.provenance.parameters, attention.provenance.edits
    inactive = " (inactive)" if parameters.get("status") == "inactive" else ""
    return {
        "model": f"{title_of(model)} in {model['dtype']}",
        "mitigation": f"mitigation: {parameters.get('mitigation', 'none')}{inactive}",
        "edits": f"{', '.join(edits) or 'no edits'}",
        "prompt": f"{which} prompt, {len(attention.tokens)} tokens",
    }


def _provenance(first: Attention, second: Attention, labels: tuple[str, str]) -> Provenance:
    """The second's, with the first's among its parameters."""
    parameters = dict(second.provenance.parameters)
    if (
        second.provenance.mitigation != first.provenance.mitigation
    ):  # which the labels name; else it is that of both
        parameters = {
            name: value
            for name, value in parameters.items()
            if name not in ("mitigation", "status")
        }
    about = {
        "measurement": "attention difference",
        "labels": labels,
        "first": first.provenance.as_dict(),
    }
    return replace(second.provenance, parameters=parameters | about)
