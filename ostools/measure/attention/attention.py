"""Attention: what the last token attends to in every head, and every head's whole pattern reduced
to a square; and attention as a profile over the tokens: the four baselines that a profile of
sensitivities has to beat.

alpha_ij^(l,h) of the paper (Section 2), as the model computed it: under edits of the forward pass
the edited pattern. Attention is not influence: a weight says what a value was multiplied by, and
`sensitivity` what that meant to y_n. Cost: one forward pass; each layer's pattern is reduced as it
appears, and of a square 64 positions a side are kept.

The baselines:

    mean            mean over layers and heads of alpha_nj
    rollout         row n of the product over layers of (mean_h alpha + I) / 2
                    (Abnar and Zuidema, arXiv 2005.00928)
    value-weighted  sum over layers and heads of alpha_nj ||W_O W_V norm(v_j)||
                    (Kobayashi et al., arXiv 2004.10102)
    alti            row n of the product over layers of C (Ferrando et al., arXiv 2203.04212),
                    C_ij = max(0, ||z_i||_1 - ||z_i - z_ij||_1), each row divided by its sum

z_i = v_i + P_i attention(norm_1(v))_i is what attention leaves in the residual stream, and z_ij its
part from token j: what the heads move from j to i, and v_i itself for j = i (docs/theory.md 1). The
norm after attention (Gemma, OLMo 2) is held at its scale, so that the parts and the biases add up
to z_i. None of the four is a derivative, and none knows what an MLP does.

Cost of these: one forward pass, and n^2 vectors of d_model numbers a layer for `alti`, some queries
at a time. No gradient.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Unpack

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from ostools.ground import InputError, Position, TransformerBridge
from ostools.hooks.torch_state import float32_products
from ostools.measure.formulas.block import BlockTerms, forward
from ostools.measure.measurement import measurement
from ostools.measure.mitigated_prompts import MitigatedPrompts
from ostools.measure.passes.contexts import captured_pass, full_precision
from ostools.measure.prompts import token_columns
from ostools.mitigations import Mitigation
from ostools.models import EncodingOptions, Prompt
from ostools.results import Chart, Column, Frame, Provenance, Result, TableHead, frame_of
from ostools.tasks import Question
from ostools.theory.path_sum import chunks

ATTENTION = "attention"
"""What tables and charts call the last token's weights, mean over layers and heads."""
BASELINES = ("mean", "rollout", "value-weighted", "alti")
SIDE = 64
"""Most rows and columns of a square: longer prompts are max-pooled."""
Bins = tuple[tuple[int, int], ...]
"""Consecutive positions, as (start, end) with the end excluded."""


@dataclass(frozen=True, eq=False)
class Attention(Result):
    """Attention weights of the last token: one row is one layer, head and token attended to.

    Columns: layer, head, position, token_id, token, origin (whose it is, of `models.ORIGINS`),
    weight (of the last token's row; a head's sum to 1).

    squares: the whole patterns, positions max-pooled into `bins` (start, end, end excluded), of
    which the last holds the last token alone: the last row of a square is its own.
    """

    tables: ClassVar = (TableHead(columns="layer head token position weight", greatest="weight"),)

    key: ClassVar = ("layer", "head", "position")

    squares: Float[Tensor, "layer head bin_query bin_key"]
    bins: Bins

    @property
    def _rows_of_all(self) -> int:
        return math.prod(self.squares.shape[:2]) * self.bins[-1][1]

    @property
    def _rows(self) -> Frame:
        """The table by layer, head and position."""
        return frame_of(self).sort_values([*self.key])

    @property
    def tokens(self) -> tuple[str, ...]:
        return tuple(self._rows["token"].iloc[: self.bins[-1][1]])

    @property
    def origins(self) -> tuple[str, ...] | None:
        """Origin of each token, of `models.ORIGINS`; None where that is not known."""
        column: Column = self._rows["origin"].iloc[: self.bins[-1][1]]
        return None if column.isna().any() else tuple(column)

    @property
    def last(self) -> Float[Tensor, "layer head key"]:
        weights = torch.tensor(self._rows["weight"].to_numpy())
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
    layer, head, place = np.indices(last.shape).reshape(3, -1)
    keys = token_columns(tokens).iloc[place].reset_index(drop=True)
    frame: Frame = pd.DataFrame({"layer": layer, "head": head}).join(keys)
    return Attention(frame.assign(weight=last.flatten().numpy()), provenance, squares, bins)


def _captured(
    model: TransformerBridge, prompt: Prompt
) -> tuple[Float[Tensor, "layer head key"], Float[Tensor, "layer head bin_query bin_key"], Bins]:
    bins = bins_of(len(prompt.ids), SIDE)

    def reduce(pattern: Tensor, layer: int | None) -> tuple[Tensor, Tensor]:
        pattern = pattern[0].float().cpu()
        return pattern[:, -1], max_pool(max_pool(pattern, bins), bins, dim=-2)

    record, _ = captured_pass(model, prompt.ids[None], "pattern", reduce=reduce)
    patterns = [record["pattern"][layer] for layer in sorted(record["pattern"])]
    last, squares = (torch.stack(tensors) for tensors in zip(*patterns, strict=True))
    if not bool(torch.isfinite(squares).all()):
        raise InputError(
            "the attention weights on this prompt are not finite: the model's weights or its dtype "
            "are broken"
        )
    return last, squares, bins


@dataclass(frozen=True, eq=False)
class AttentionBaselines(Result):
    """Attention of the last token to each token, read four ways: one row is one token under one
    baseline.

    Columns: position, token_id, token, origin, baseline ("mean" | "rollout" | "value-weighted" |
    "alti"), value. The values of mean, rollout and alti add up to 1. Those of value-weighted have
    the size of what heads write into the residual stream.
    """

    tables: ClassVar = (TableHead(columns="position token value", across="baseline"),)
    key: ClassVar = ("baseline", "position")

    def chart(self) -> Chart:
        from ostools.reporting.charts.tokens import attention_baselines_chart

        return attention_baselines_chart(self)

    def findings(self) -> list[str]:
        from ostools.reporting.findings.profiles import attention_baselines_findings

        return attention_baselines_findings(self)


@measurement(
    command="attention baselines",
    examples=('--prompt "The capital of France is" --out baselines.png',),
    memory=["blocks"],
)
def attention_baselines(
    model: TransformerBridge,
    prompt: str | Prompt | Question,
    *,
    position: Position | None = None,
    mitigation: Mitigation | str | None = None,
    **encoding: Unpack[EncodingOptions],
) -> AttentionBaselines:
    """Rank the tokens by attention alone: mean attention, rollout, value-weighted attention and
    ALTI of the last token.

    Args:
        position: where a task's question is read, as in `collapse`.
        mitigation: a `mitigations.Mitigation` or its name with options. The text is the one that it
            rewrites, and the model runs under its hooks. It has to change the prompt or a logit, or
            it is refused.

    The weights as read here have to reproduce what attention and MLP of every block computed.
    Raises `InputError` where they do not, and for blocks (experts) and active edits that the
    formulas do not describe. Read in float64.
    """
    mitigated = MitigatedPrompts.of("attention_baselines", model, [prompt], mitigation, position)
    tokens = mitigated.prompt
    provenance = Provenance.collect(model, tuple(tokens.ids.tolist()), **mitigated.described(model))
    work = full_precision(model, "attention_baselines")
    with torch.inference_mode(False), torch.no_grad(), mitigated.acting(work), float32_products():
        values = _values(work, tokens)
    if not all(bool(torch.isfinite(row).all()) for row in values.values()):
        raise InputError(
            "attention_baselines: ALTI has no value on this prompt: no token has a part in some z_i"
        )
    tables = [
        token_columns(tokens).assign(baseline=name, value=values[name].cpu().numpy())
        for name in BASELINES
    ]
    return AttentionBaselines(pd.concat(tables, ignore_index=True), provenance)


def _values(model: TransformerBridge, tokens: Prompt) -> dict[str, Float[Tensor, " key"]]:
    """Every baseline, the blocks from the last to the first: a product over layers is a row times
    each.
    """
    run, layers = forward(model, tokens.ids), int(model.cfg.n_layers)
    last = torch.eye(len(tokens.ids), dtype=torch.float64, device=run.final_norm_scale.device)[-1]
    mean, weighted, rollout, alti = torch.zeros_like(last), torch.zeros_like(last), last, last
    for block in run.blocks():
        attention, vectors = block.pattern.mean(0), moved_vectors(block)
        mean = mean + attention[-1] / layers
        rollout = (rollout @ attention + rollout) / 2
        weighted = weighted + (block.pattern[:, -1] * vectors.norm(dim=-1)).sum(0) / block.rp1[-1]
        alti = alti @ alti_contributions(block, vectors)
    return dict(zip(BASELINES, (mean, rollout, weighted, alti), strict=True))


def moved_vectors(block: BlockTerms) -> Float[Tensor, "head key d_model"]:
    """W_O W_V norm(v_j) of every head, with the value's bias and the gain of a norm after
    attention; its scale is left out.
    """
    return torch.einsum("hke,hde->hkd", block.value, block.weights.left_factor)


def alti_contributions(
    block: BlockTerms, vectors: Float[Tensor, "head key d_model"]
) -> Float[Tensor, "query key"]:
    """C of one block: share of token j in z_i, by how much closer to z_i its part brings the rest,
    in l1.
    """
    pattern, scale, pos = block.pattern, block.rp1, vectors.shape[1]
    rows = []
    for part in chunks(pos, 3 * vectors[0].nbytes):
        parts = torch.einsum("hqk,hkd->qkd", pattern[:, part], vectors) / scale[part, None, None]
        queries = torch.arange(pos, device=scale.device)[part]
        parts[torch.arange(len(queries), device=scale.device), queries] += block.residual[part]
        z = parts.sum(1) + block.weights.out_bias / scale[part, None]
        without_part = (z[:, None] - parts).abs().sum(-1)
        rows.append((z.abs().sum(-1, keepdim=True) - without_part).clamp_min(0.0))
    contributions = torch.cat(rows)
    return contributions / contributions.sum(-1, keepdim=True)


def bins_of(length: int, most: int) -> Bins:
    """Consecutive positions in at most `most` bins of equal width (the first may be narrower), the
    last position alone.
    """
    width = max(1, math.ceil((length - 1) / (most - 1)))
    starts = range((length - 1) % width - width if (length - 1) % width else 0, length - 1, width)
    return (*((max(start, 0), start + width) for start in starts), (length - 1, length))


def max_pool(values: Tensor, bins: Bins, dim: int = -1) -> Tensor:
    """The greatest value of each bin along one dimension."""
    return torch.stack(
        [values.narrow(dim, start, end - start).amax(dim) for start, end in bins], dim=dim
    )
