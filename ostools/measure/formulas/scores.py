"""How the attention scores follow the residual stream: what the real derivative needs and the
frozen one does not.

    score_ij = f_i ( cap( s q_i . k_j ) + b_j )

q_i and k_j are those of `heads`, cap(x) = c tanh(x / c) (Gemma 2), b_j ALiBi's bias of a head, f_i
a temperature that an edit may have put in; each is the identity, or 0, where the model has none.

A block's pattern is walked in strips of queries. A long prompt's pattern is made again by the
model's own attention (`hooks.in_strips`), one strip at a time, at every walk: heads x strip x n
numbers in place of heads x n^2, for one more product of queries and keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

import hooks
from hooks import StripAttention
from hooks.register import hidden
from ostools.ground.errors import OF_A_LEFT_HOOK, InputError
from ostools.measure.formulas.heads import Closeness


def require_softmax(model: TransformerBridge, what: str, instead: str) -> None:
    """Refuse, with `InputError`, `what` under an edit that puts a pattern in the place of the softmax of the scores.

    The real derivative follows the scores into the pattern. No check of values sees a pattern that is replaced by its own
    numbers, whose derivative is another. Edges that are masked in the scores ("renormalise") leave it the softmax.
    """
    for edit in hooks.active_edits(model):
        if edit.kind in ("replace_pattern", "ablate_edges") and edit.where.endswith("hook_pattern"):
            raise InputError(
                f"{what} describes a pattern that is the softmax of the scores, which the active edit {edit.kind!r} at "
                f"{edit.where} replaces; leave the edit's block, or {instead}{OF_A_LEFT_HOOK}"
            )


class ScoresCheck:
    """Check of a block's scores, gathered over all queries, at once or strip by strip, then required."""

    def __init__(self, layer: int) -> None:
        self._layer = layer
        self.scores = Closeness(layer, "the scores of attention")
        self._is_softmax = True

    def see_pattern(self, scores: Tensor, pattern: Tensor, dtype: torch.dtype) -> None:
        softmax_pattern = torch.softmax(scores.to(dtype), dim=-1)
        pattern = pattern.to(softmax_pattern)
        # What is no number is above no limit, and below none.
        self._is_softmax &= bool((softmax_pattern.sub_(pattern).abs_() <= pattern.abs().mul_(1e-3).add_(1e-5)).all())

    def require(self) -> None:
        """Raises `InputError` for what was seen and must not be."""
        self.scores.require()
        if not self._is_softmax:
            raise InputError(
                f"block {self._layer}: the pattern is not the softmax of the scores (replaced, or edges ablated): formulas "
                f"of the real derivative do not describe it; leave the edit's block, or measure with sensitivity()"
            )


def slopes(
    model: TransformerBridge,
    layer: int,
    query: Float[Tensor, "head query d_head"],
    key: Float[Tensor, "head key d_head"],
    scores: Float[Tensor, "head query key"],
    scaled: bool,
    check: ScoresCheck | None = None,
    bias: Float[Tensor, "head 1 key"] | None = None,
) -> Float[Tensor, "head query key"]:
    """slope_ij = d score_ij / d (q_i . k_j) = f_i phi_ij s of some queries; 0 where masked.

    phi = 1 - (capped / c)^2 under a soft-cap. `check` compares the scores by the formulas with the model's own; `scaled`: a
    temperature edit is active.
    """
    attention: Any = model.blocks[layer].attn.original_component
    visible = ~hidden(scores)
    scale = float(getattr(attention, "scaling", getattr(attention, "softmax_scale", query.shape[-1] ** -0.5)))
    cap = getattr(attention, "attn_logit_softcapping", None)
    if check is None and cap is None and not scaled:
        return visible.to(query) * scale
    raw_scores = scale * query @ key.mT
    slope = visible.to(query) * scale
    if cap is not None:
        raw_scores = cap * torch.tanh(raw_scores / cap)
        slope = slope * (1.0 - (raw_scores / cap).square())
    if bias is not None:
        raw_scores = raw_scores + bias.to(raw_scores)
    if scaled:
        temperature = _temperature(raw_scores, scores.to(raw_scores), visible, layer)
        raw_scores, slope = temperature * raw_scores, temperature * slope
    if check is not None:
        check.scores.see(torch.where(visible, raw_scores, 0.0), torch.where(visible, scores, 0.0))
    return slope


def _temperature(
    raw_scores: Float[Tensor, "head query key"],
    scores: Float[Tensor, "head query key"],
    visible: Bool[Tensor, "head query key"],
    layer: int,
) -> Float[Tensor, "head query 1"]:
    """Factor by which an edit multiplied each query's scores, read off its largest visible score."""
    largest = torch.where(visible, raw_scores.abs(), -1.0).argmax(-1, keepdim=True)
    formula_score, model_score = raw_scores.gather(-1, largest), scores.gather(-1, largest)
    if bool((formula_score == 0).any()):
        raise InputError(
            f"block {layer}: every score of a query is exactly 0, so that the temperature that scale_scores gave it cannot "
            f"be read off; leave the edit's block, or measure with sensitivity()"
        )
    return model_score / formula_score


Pattern = Float[Tensor, "head query key"]


@dataclass(frozen=True)
class Strip:
    """Some queries and the keys that any of them sees: what lies outside (the future, a window's past) is never touched.

    `answer`: alpha_ij slope_ij, how the pattern's scores answer; None where the pattern is held constant.
    """

    queries: slice
    keys: slice
    pattern: Pattern
    answer: Pattern | None


def strip_bounds(queries: int, size: int | None = None) -> list[tuple[int, int]]:
    """Strips of `size` queries; four by default: what a causal pattern takes is then 5/8 of the full square."""
    size = size or max(32, -(-queries // 4))
    return [(start, min(start + size, queries)) for start in range(0, queries, size)]


def whole_strips(pattern: Pattern, slope: Pattern | None) -> list[Strip]:
    """The strips of a pattern that is there as a whole."""
    visible = (pattern != 0).any(0)
    strips = []
    for start, stop in strip_bounds(pattern.shape[1]):
        queries = slice(start, stop)
        columns = visible[queries].any(0).nonzero().flatten().tolist() or [0]
        keys = slice(columns[0], columns[-1] + 1)
        strip_pattern = pattern[:, queries, keys].contiguous()
        strips.append(
            Strip(queries, keys, strip_pattern, None if slope is None else strip_pattern * slope[:, queries, keys])
        )
    return strips


Slopes = Callable[[slice, Pattern, ScoresCheck | None], Pattern]
"""d score_ij / d (q_i . k_j) of some queries and all keys up to their last one, from their scores; seen by the check."""


@dataclass(frozen=True)
class RemadeStrips:
    """The strips of the queries `rows`, made anew at every walk; the edits that are active then act on them.

    `slopes`: None where the pattern is held constant.
    """

    attention: StripAttention
    rows: slice
    size: int
    dtype: torch.dtype
    slopes: Slopes | None

    def __iter__(self) -> Iterator[Strip]:
        for start, stop in self._bounds:
            yield self._strip(start, stop, None)

    def check(self, layer: int) -> None:
        """Every strip's scores and pattern are what the formulas say; else `InputError`."""
        check = ScoresCheck(layer)
        for start, stop in self._bounds:
            self._strip(start, stop, check)
        check.require()

    @property
    def _bounds(self) -> list[tuple[int, int]]:
        return strip_bounds(self.rows.stop - self.rows.start, self.size)

    @torch.no_grad()
    def _strip(self, start: int, stop: int, check: ScoresCheck | None) -> Strip:
        queries = slice(self.rows.start + start, self.rows.start + stop)
        scores, pattern = (tensor[0] for tensor in self.attention.strip(queries.start, queries.stop))
        visible_keys = (pattern != 0).any(0).any(0).nonzero().flatten().tolist() or [0]
        keys = slice(visible_keys[0], visible_keys[-1] + 1)
        strip_pattern, answer = pattern[..., keys].to(self.dtype).contiguous(), None
        if self.slopes is not None:
            slope = self.slopes(queries, scores, check)
            if check is not None:
                check.see_pattern(scores, pattern, self.dtype)
            answer = strip_pattern * slope[..., keys]
        return Strip(slice(start, stop), keys, strip_pattern, answer)
