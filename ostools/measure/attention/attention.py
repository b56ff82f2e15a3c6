"""Attention: what the last token attends to in every head, and every head's whole pattern reduced
to a square.

alpha_ij^(l,h) of the paper (Section 2), as the model computed it: under edits of the forward pass
the edited pattern. Attention is not influence: a weight says what a value was multiplied by, and
`sensitivity` what that meant to y_n. Cost: one forward pass; each layer's pattern is reduced as it
appears, and of a square 64 positions a side are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Unpack

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from ostools import hooks
from ostools.ground import InputError, Position, TransformerBridge
from ostools.ground.pooling import Bins, bins_of, max_pool
from ostools.measure.measurement import measurement
from ostools.measure.mitigated_prompts import MitigatedPrompts
from ostools.measure.passes.contexts import no_logits
from ostools.measure.prompts import token_columns
from ostools.mitigations import Mitigation
from ostools.models import EncodingOptions, Prompt
from ostools.models.precision.torch_state import float32_products
from ostools.results import Chart, Column, Frame, Provenance, Result, TableHead
from ostools.tasks import Question

ATTENTION = "attention"
"""What tables and charts call the last token's weights, mean over layers and heads."""
SIDE = 64
"""Most rows and columns of a square: longer prompts are max-pooled."""


@dataclass(frozen=True, eq=False)
class Attention(Result):
    """Attention weights of the last token: one row is one layer, head and token attended to.

    Columns: layer, head, position, token_id, token, origin (whose it is, of `models.ORIGINS`),
    weight (of the last token's row; a head's sum to 1).

    squares: the whole patterns, positions max-pooled into `bins` (start, end, end excluded), of
    which the last holds the last token alone: the last row of a square is its own.
    """

    tables: ClassVar = (TableHead(columns="layer head token position weight", greatest="weight"),)

    squares: Float[Tensor, "layer head bin_query bin_key"]
    bins: Bins

    @property
    def tokens(self) -> tuple[str, ...]:
        return tuple(self.frame["token"].iloc[: self.bins[-1][1]])

    @property
    def origins(self) -> tuple[str, ...] | None:
        """Origin of each token, of `models.ORIGINS`; None where that is not known."""
        column: Column = self.frame["origin"].iloc[: self.bins[-1][1]]
        return None if column.isna().any() else tuple(column)

    @property
    def last(self) -> Float[Tensor, "layer head key"]:
        weights = torch.tensor(self.frame["weight"].to_numpy())
        return weights.reshape(*self.squares.shape[:2], self.bins[-1][1])

    def chart(self) -> Chart:
        from ostools.reporting.charts.attention import attention_chart

        return attention_chart(self)

    def findings(self) -> list[str]:
        from ostools.reporting.charts.attention import attention_findings

        return attention_findings(self)


@measurement(
    command="attention",
    examples=(
        '--prompt "Can you copy the following number?1111" --out x.html',
        "--task copy-last --length 12",
    ),
    memory=["patterns"],
    in_chunks=True,
)
def attention(
    model: TransformerBridge,
    prompt: str | Prompt | Question,
    *,
    position: Position | None = None,
    mitigation: Mitigation | str | None = None,
    **encoding: Unpack[EncodingOptions],
) -> Attention:
    """The last token's attention weights in every layer and head, and every pattern, reduced to at
    most 64 x 64.

    Args:
        prompt: a text, its tokens, or a task's question.
        position: where a task's question is read, as in `collapse`. It is the last token of the
            patterns.
        mitigation: a `mitigations.Mitigation` or its name with options. The text is the one that it
            rewrites, and the patterns are those under its hooks. It has to change the prompt or a
            logit, or it is refused.

    Raises `InputError` for weights that are not finite, for a mitigation that cannot be applied to
    what was given (one that inserts between items, to a text that is not a task's; one that
    rewrites text, to tokens), and for a prompt longer than the context.
    """
    mitigated = MitigatedPrompts.of("attention", model, [prompt], mitigation, position)
    tokens = mitigated.prompt
    about = {"measurement": "attention", "side": SIDE, **mitigated.described(model)}
    provenance = Provenance.collect(model, tuple(tokens.ids.tolist()), **about)
    with mitigated.acting(model):
        last, squares, bins = _captured(model, tokens)
    layers, heads, pos = last.shape
    frame: Frame = pd.concat([token_columns(tokens)] * (layers * heads), ignore_index=True)
    frame.insert(0, "layer", np.repeat(np.arange(layers), heads * pos))
    frame.insert(1, "head", np.tile(np.repeat(np.arange(heads), pos), layers))
    return Attention(frame.assign(weight=last.flatten().numpy()), provenance, squares, bins)


def _captured(
    model: TransformerBridge, prompt: Prompt
) -> tuple[Float[Tensor, "layer head key"], Float[Tensor, "layer head bin_query bin_key"], Bins]:
    bins = bins_of(len(prompt.ids), SIDE)

    def reduce(pattern: Tensor, layer: int | None) -> tuple[Tensor, Tensor]:
        pattern = pattern[0].float().cpu()
        return pattern[:, -1], max_pool(max_pool(pattern, bins), bins, dim=-2)

    device = next(model.parameters()).device
    with (
        torch.no_grad(),
        float32_products(),
        hooks.capture(model, "pattern", reduce=reduce) as record,
    ):
        model(prompt.ids[None].to(device), use_cache=False, logits_to_keep=no_logits(model))
    layer_patterns = [record["pattern"][layer] for layer in sorted(record["pattern"])]
    last, squares = (torch.stack(tensors) for tensors in zip(*layer_patterns, strict=True))
    if not bool(torch.isfinite(squares).all()):
        raise InputError(
            "the attention weights on this prompt are not finite: the model's weights or its dtype "
            "are broken"
        )
    return last, squares, bins
