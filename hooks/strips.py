"""Attention in strips of queries: the numbers of the model's own attention, never heads x n^2 of
them at once.

    scores_S = cap(s Q_S K^T) + mask_S,   pattern_S = softmax(scores_S),   z_S = pattern_S V,   S = some queries

A row of the pattern depends on its own query alone, so that strips give what the whole gives, up to
the order of sums inside a product. Keys after a strip's last query are left out: a causal mask
hides them, which is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor

from ostools.ground.arguments import checked_arguments
from ostools.ground.lens import (
    HookPoint,
    JointQKVAttentionBridge,
    JointQKVPositionEmbeddingsAttentionBridge,
    TransformerBridge,
)
from ostools.hooks.errors import HookError
from ostools.hooks.lock import model_block
from ostools.hooks.precision import cast_mask
from ostools.hooks.register import OwnForward, hidden, kinds, lowest, next_block, remove_hooks
from ostools.hooks.sites import is_closed, points, require_open

# Edits of scores and patterns that ask for absolute positions only, and so take a strip as they
# take a cached generation.
_STRIPWISE = frozenset(
    {"mask_scores", "scale_scores", "ablate_edges", "freeze", "exact-arithmetic"}
)
# The classes of attention that are known, joint ones (q, k, v out of one weight) without and with a
# rotation.
_KNOWN = (
    "PositionEmbeddingsAttentionBridge",
    "JointQKVAttentionBridge",
    "JointQKVPositionEmbeddingsAttentionBridge",
)
# What the bridge's attention can do and this one cannot: settings of its configuration, parts of
# it, of what it wraps.
_UNKNOWN = (
    "use_split_qkv_input",
    "use_attn_in",
    "use_attn_result",
    "gated_q_proj",
    "qk_norm_after_rope",
)
_UNKNOWN += (
    "rotary_interleaved_cos_sin",
    "rotary_adjacent_pairs",
    "scale_attn_by_inverse_layer_idx",
)
_UNKNOWN_OF_BRIDGE = ("_reorder_and_upcast_attn", "_qk_norm_per_head")
_UNKNOWN_OF_ORIGINAL = ("key_multiplier", "sinks")


@dataclass(frozen=True)
class StripAttention:
    """One call of one attention. The pattern of any strip of queries is made when it is asked for,
    and is not kept.

    `query` and `key` are as the scores read them (rotated, with keys for each query head). The
    edits that are active when a strip is asked for act on it.
    """

    query: Float[Tensor, "batch head query d_head"]
    key: Float[Tensor, "batch head key d_head"]
    _mask: Tensor | None
    _scale: float
    _cap: float | None
    _scores_point: HookPoint
    _pattern_point: HookPoint
    _softmax: Callable[[Tensor], Tensor]

    def strip(
        self, start: int, stop: int
    ) -> tuple[Float[Tensor, "batch head strip seen"], Float[Tensor, "batch head strip seen"]]:
        """Scores and pattern of the queries start ... stop - 1 over every key up to the last of
        these queries.
        """
        for point in (self._scores_point, self._pattern_point):
            _require_stripwise(point)
        offset = self.key.shape[-2] - self.query.shape[-2]
        keys = offset + stop
        scores = self.query[..., start:stop, :] @ self.key[..., :keys, :].mT * self._scale
        if self._cap is not None:
            scores = torch.tanh(scores / self._cap) * self._cap
        scores = self._scores_point(self._masked(scores, offset + start, keys))
        return scores, self._pattern_point(self._softmax(scores))

    def _masked(self, scores: Tensor, first_query: int, keys: int) -> Tensor:
        if self._mask is None:
            future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(
                first_query + 1
            )
            return scores.masked_fill(future, lowest(scores))
        offset = self.key.shape[-2] - self.query.shape[-2]
        mask = self._mask[..., first_query - offset : keys - offset, :]
        later_mask, mask = mask[..., keys : self.key.shape[-2]], mask[..., :keys]
        if bool((later_mask if later_mask.dtype == torch.bool else ~hidden(later_mask)).any()):
            raise HookError(
                "in_strips: the model's mask lets a query see a later key; strips know causal attention only"
            )
        if mask.dtype == torch.bool:
            return scores + torch.where(mask, 0.0, lowest(scores)).to(scores)
        return scores + mask.to(scores)


@dataclass
class Strips:
    """State of `in_strips`: attention runs `size` queries at a time."""

    size: int
    _noting: dict[int, list[StripAttention]] = field(default_factory=dict)

    @contextmanager
    def noting(self, layer: int) -> Iterator[list[StripAttention]]:
        """Collect the calls of one block's attention inside this block, as they come."""
        calls: list[StripAttention] = []
        self._noting[layer] = calls
        try:
            yield calls
        finally:
            del self._noting[layer]

    def attend(
        self, layer: int, call: StripAttention, value: Tensor
    ) -> Float[Tensor, "batch query head d_head"]:
        """z, strip by strip."""
        if layer in self._noting:
            self._noting[layer].append(call)
        queries, keys = call.query.shape[-2], call.key.shape[-2]
        parts = []
        for start in range(0, queries, self.size):
            stop = min(start + self.size, queries)
            parts.append(call.strip(start, stop)[1] @ value[..., : keys - queries + stop, :])
        return torch.cat(parts, dim=-2).transpose(1, 2).contiguous()


@model_block
def in_strips(model: TransformerBridge, size: int) -> Iterator[Strips]:
    """Compute the attention of every layer `size` queries at a time inside the block.

    Masks, temperatures, ablated edges and freezing act as always. They see some queries, and all
    keys up to the last of these. Scores and patterns cannot be captured or replaced inside, because
    they never exist as a whole.

    Raises `HookError` for a model whose attention is not known here, for an edit or an observer
    that needs a whole pattern, for a mask that is not causal, and for a second such block inside
    the first.
    """
    if size < 1:
        raise HookError(f"in_strips: expected a size of at least one query, found {size}")
    _require_known(model)
    for name in ("scores", "pattern"):
        for point in points(model, name).values():
            _require_stripwise(point)
    strips, block = Strips(size), next_block()
    attentions: list[Any] = [part.attn for part in model.blocks]
    try:
        for layer, attention in enumerate(attentions):
            vars(attention)["forward"] = _Forward(strips, layer, attention, block)
        yield strips
    finally:
        remove_hooks(attentions, block)


@checked_arguments(HookError)
def active_strips(model: TransformerBridge) -> Strips | None:
    """The `Strips` of the `in_strips` block around this call, None outside of one."""
    if is_closed(model):
        return None
    forward = vars(model.blocks[0].attn).get("forward")
    return forward.strips if isinstance(forward, _Forward) else None


def _require_stripwise(point: HookPoint) -> None:
    hook_kinds = kinds(point)
    if len(hook_kinds) < len(point._forward_hooks):
        hook_kinds.append(None)  # that of TransformerLens' own `run_with_cache`
    for kind in hook_kinds:
        if kind not in _STRIPWISE:
            what = "an observer" if kind is None else f"the edit {kind!r}"
            raise HookError(f"in_strips: {what} at {point.name} needs the whole pattern at once")


def _require_known(model: TransformerBridge) -> None:
    require_open(model, "in_strips")
    if active_strips(model) is not None:
        raise HookError("in_strips: found a block of its kind around this one")
    for block in model.blocks:
        attention = block.attn
        active = _unknown_parts(attention)
        # The class that computes: what a user of this package puts before it (float32 scores) does
        # not count.
        lens = next(
            kind
            for kind in type(attention).__mro__
            if kind.__module__.startswith("transformer_lens")
        )
        if lens.__name__ not in _KNOWN or active:
            description = ", ".join([type(attention).__name__, *active])
            raise HookError(
                f"in_strips: does not know the attention of {model.cfg.architecture}: expected raw {', '.join(_KNOWN[:-1])} "
                f"or {_KNOWN[-1]} in evaluation mode, found {description}"
            )


def _unknown_parts(attention: Any) -> list[str]:
    """Names of what this attention does and strips of it would not."""
    original = attention.original_component
    config = getattr(original, "config", None)
    unknown_parts = [name for name in _UNKNOWN if getattr(attention.config, name, None)]
    unknown_parts += [name for name in _UNKNOWN_OF_BRIDGE if getattr(attention, name, None)]
    unknown_parts += [
        name for name in _UNKNOWN_OF_ORIGINAL if getattr(original, name, None) is not None
    ]
    unknown_parts += [name for name in ("clip_qkv",) if getattr(config, name, None) is not None]
    rope = getattr(config, "rope_parameters", None) or {}
    unknown_parts += (
        ["llama_4_scaling_beta"] if rope.get("llama_4_scaling_beta") is not None else []
    )
    unknown_parts += ["gate"] if "gate" in attention.submodules else []
    return unknown_parts + [
        name for name in ("compatibility_mode", "training") if getattr(attention, name)
    ]


class _Forward(OwnForward):
    """Replacement of an attention's `forward`: its hooks in the same order, its heads in strips."""

    def __init__(self, strips: Strips, layer: int, attention: Any, block: int) -> None:
        self.strips, self._layer, self._attention, self.block = strips, layer, attention, block
        self._joint = isinstance(attention, JointQKVAttentionBridge)
        self._rotates = not self._joint or isinstance(
            attention, JointQKVPositionEmbeddingsAttentionBridge
        )

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
        attention = self._attention
        kwargs = attention.prepared(kwargs) if hasattr(attention, "prepared") else kwargs
        x = attention.hook_in(kwargs.pop("hidden_states") if "hidden_states" in kwargs else args[0])
        query, key, value = self._projected(x, kwargs.get("position_embeddings"))
        # A class that keeps scores in float32 in a 16-bit model widens keys and values here, and
        # queries at their last hook.
        key, value = attention._update_kv_cache(key, value, **kwargs)
        query = query.to(key.dtype)
        group = query.shape[1] // key.shape[1]
        if group > 1:
            key, value = (part.repeat_interleave(group, dim=1) for part in (key, value))
        mask = kwargs.get("attention_mask")
        call = self._call(query, key, mask if mask is None else cast_mask(mask, key.dtype))
        z = self.strips.attend(self._layer, call, value).reshape(*x.shape[:-1], -1)
        out = attention.o(z.to(x.dtype))
        if self._joint:
            return cast(Any, attention._process_output((out, None)))
        return attention.hook_out(out), None

    def _projected(self, x: Tensor, position_embeddings: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, heads first, rotated where the model rotates."""
        attention = self._attention
        query, key, value = attention.q(x), attention.k(x), attention.v(x)
        d_head, normed = int(attention.config.d_head), "q_norm" in attention.submodules
        joint_norm = (
            normed and attention._qk_norm_phase == "pre_reshape"
        )  # a norm over all heads together
        if joint_norm:
            query, key = self._normed(query, key)
        query, key, value = (
            part.view(*x.shape[:-1], -1, d_head).transpose(1, 2) for part in (query, key, value)
        )
        if normed and not joint_norm:
            query, key = self._normed(query, key)
        if not self._rotates or not hasattr(attention, "hook_rot_q"):  # learned positions
            return query, key, value
        if position_embeddings is None:
            raise HookError("in_strips: expected the rotation of this call, found none")
        cos, sin = attention._apply_position_embedding_hooks(position_embeddings)
        turned = cos.shape[-1]  # of each head; the rest stays as it is
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

        parts = apply_rotary_pos_emb(query[..., :turned], key[..., :turned], cos, sin)
        if turned < d_head:
            parts = (
                torch.cat([part, x[..., turned:]], -1)
                for part, x in zip(parts, (query, key), strict=True)
            )
        query, key = parts
        if self._joint:
            return query, key, value
        return attention.hook_rot_q(query), attention.hook_rot_k(key), value

    def _normed(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        attention = self._attention
        return attention.hook_q_normed(attention.q_norm(query)), attention.hook_k_normed(
            attention.k_norm(key)
        )

    def _call(self, query: Tensor, key: Tensor, mask: Tensor | None) -> StripAttention:
        attention, original = self._attention, self._attention.original_component
        if mask is not None and mask.ndim < 4:
            raise HookError(
                f"in_strips: expected a mask of four axes or none, found {tuple(mask.shape)}"
            )
        scale = (
            query.shape[-1] ** -0.5
            if self._joint
            else float(getattr(original, "scaling", query.shape[-1] ** -0.5))
        )
        # As the bridge computes them: the softmax of a joint one in the scores' own dtype, the
        # others' in float32.
        dtype = None if self._joint else torch.float32

        def softmax(scores: Tensor) -> Tensor:
            return torch.softmax(scores, dim=-1, dtype=dtype).to(query.dtype)

        cap = None if self._joint else getattr(original, "attn_logit_softcapping", None)
        points_of = attention.hook_attn_scores, attention.hook_pattern
        return StripAttention(query, key, mask, scale, cap, *points_of, softmax)
