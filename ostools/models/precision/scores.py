"""Attention of a 16-bit model as people run it: between queries, keys, values and its output it computes in float32.

    scores = s q k^T + mask,   alpha = softmax(scores),   z = alpha v     in float32;   q, k, v and z are rounded to 16 bits

sdpa (transformers' default), flash attention and servers keep scores and softmax in float32. transformers' eager attention,
which TransformerLens writes again, rounds the scores to 16 bits before the softmax. Where scores are large that is another
model: those of Qwen 2.5 reach 12,400, where neighbouring bfloat16 numbers are 64 apart. That arithmetic is a choice with a
name, "bfloat16-eager".

Hooks of scores and patterns see float32, all others the model's dtype. In float32 and float64 nothing changes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.generalized_components import (
    AttentionBridge,
    JointQKVAttentionBridge,
    JointQKVPositionEmbeddingsAttentionBridge,
)
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import eager_mask

from ostools import hooks
from ostools.ground.errors import InputError, unknown_name
from ostools.hooks.precision import SIXTEEN_BITS, cast_mask
from ostools.hooks.sites import is_closed
from ostools.models.families import Family
from ostools.models.files.functions import require_own_functions
from ostools.theory.distances import DTYPES

ARITHMETICS: dict[str, tuple[torch.dtype, bool]] = {name: (dtype, False) for name, dtype in DTYPES.items()} | {
    f"{name}-eager": (dtype, True) for name, dtype in DTYPES.items() if dtype in SIXTEEN_BITS
}
"""The dtype, and whether attention's scores are rounded to it, of every name that `load_model` takes."""
AUTO = "auto"
"""The name that `load_model` takes for the dtype that a file stores."""
FLOAT32_SCORES = "ostools-float32-scores"
"""transformers' name for its eager attention with this arithmetic (`AttentionInterface`)."""


def arithmetic_named(name: str | torch.dtype) -> tuple[torch.dtype, bool]:
    """The dtype of that name, and whether attention's scores are rounded to it; `InputError` for an unknown name."""
    text = str(name).removeprefix("torch.")
    if text not in ARITHMETICS:
        raise unknown_name("dtype", text, (AUTO, *ARITHMETICS))
    return ARITHMETICS[text]


def check_arithmetic(family: Family, eager: bool) -> None:
    """`InputError` for eager 16-bit attention of a family of which TransformerLens does not write it again as it is."""
    if eager and family.not_eager is not None:
        raise InputError(
            f"expected attention with its scores in float32 for {family.name}, found an eager dtype: {family.not_eager}; ask "
            "for 'bfloat16' or 'float16'"
        )


def is_eager(model: TransformerBridge) -> bool:
    """Whether the model, if in 16 bits, rounds attention's scores. A bridge does that TransformerLens alone has made."""
    return getattr(model.cfg, "eager_scores", True)


def put_scores(model: TransformerBridge, eager: bool) -> None:
    """Let the attention of every block keep its scores in float32 if the model is in 16 bits; `eager`: round them.

    Raises `InputError` for a model by the generic route whose own code computes its attention.
    """
    cfg: Any = model.cfg
    cfg.eager_scores = eager
    if is_closed(model):
        closed: Any = model
        dtype, config = next(model.parameters()).dtype, closed.original_model.config
        wide = eager or dtype not in SIXTEEN_BITS
        if not wide and not closed.asks_interface:
            name = str(dtype).removeprefix("torch.")
            raise InputError(
                f"expected attention that transformers can compute with scores in float32, found {model.cfg.architecture}, "
                f"whose own code computes it: ask for float32, or for '{name}-eager', as it is"
            )
        config._attn_implementation = "eager" if wide else FLOAT32_SCORES
        return
    for block in model.blocks:
        attention: Any = block.attn
        if not isinstance(attention, Float32Scores):
            _put_before(attention)
        attention.eager = eager


class Float32Scores(AttentionBridge):
    """Goes before a class of TransformerLens' attention, of which it widens what enters the scores and rounds z.

    `eager`: nothing of that. `delegates`: Hugging Face's module computes, as it would without TransformerLens, and no hook
    inside it is called (`own_attention`). `can_delegate`: that has been seen to give the same model.
    """

    eager = False
    delegates = False
    can_delegate = False

    @property
    def narrow(self) -> torch.dtype | None:
        """The 16-bit dtype of q, k, v and z; None in another dtype, and if eager."""
        weight: Any = self.o.original_component.weight  # pyright: ignore[reportAttributeAccessIssue]
        return weight.dtype if weight.dtype in SIXTEEN_BITS and not self.eager else None

    def widened(self, x: Tensor) -> Tensor:
        """Queries, keys or values as the model's dtype holds them, in float32."""
        return x if self.narrow is None else x.to(self.narrow).float()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.delegates:
            module: Any = self.original_component
            return module(*args, **kwargs)
        if self.narrow is not None:
            mask, alibi = kwargs.get("attention_mask"), kwargs.get("alibi")
            if isinstance(mask, Tensor):
                kwargs["attention_mask"] = cast_mask(mask, torch.float32)
            if isinstance(alibi, Tensor):
                kwargs["alibi"] = alibi.float()
        return super().forward(*args, **kwargs)

    # Every class of TransformerLens passes this between the rotation and the scores. The cache keeps 16 bits.
    def _update_kv_cache(self, k: Tensor, v: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor]:
        keys, values = super()._update_kv_cache(k if self.narrow is None else k.to(self.narrow), v, **kwargs)
        return self.widened(keys), self.widened(values)


class _Joint(Float32Scores):
    """Of one weight for q, k and v, without a rotation."""

    def _reshape_qkv_to_heads(self, q: Tensor, k: Tensor, v: Tensor, *counts: Any) -> Any:
        q, *keys_values_sizes = super()._reshape_qkv_to_heads(q, k, v, *counts)
        return self.widened(q), *keys_values_sizes

    def _reshape_attn_output(self, attn_output: Tensor, *sizes: int) -> Tensor:
        z = super()._reshape_attn_output(attn_output, *sizes)
        return z if self.narrow is None else z.to(self.narrow)


class _JointRotated(_Joint):
    """Of one weight for q, k and v, whose rotation computes in the model's dtype."""

    def _reshape_qkv_to_heads(self, q: Tensor, k: Tensor, v: Tensor, *counts: Any) -> Any:
        return AttentionBridge._reshape_qkv_to_heads(self, q, k, v, *counts)

    def _apply_rotary_pos_emb(self, q: Tensor, k: Tensor, *angles: Tensor) -> tuple[Tensor, Tensor]:
        parent: Any = super()
        q, k = parent._apply_rotary_pos_emb(q, k, *angles)
        return self.widened(q), k


class _LastOfQueries(HookPoint):
    """The last hook point of queries, which hands them over in float32 after all hooks have seen them."""

    def __call__(self, x: Tensor) -> Tensor:
        reader: Any = self._reader
        return reader[0].widened(super().__call__(x))


def _put_before(attention: Any) -> None:
    """Put the class that fits before the attention's own. TransformerLens' rotated attention rounds z by itself."""
    kind, before = type(attention), Float32Scores
    if issubclass(kind, JointQKVPositionEmbeddingsAttentionBridge):
        before = _JointRotated
    elif issubclass(kind, JointQKVAttentionBridge):
        before = _Joint
    else:
        point = attention.hook_rot_q if hasattr(attention, "hook_rot_q") else attention.q.hook_out
        point.__class__, point._reader = _LastOfQueries, (attention,)
    attention.__class__ = type(kind.__name__, (before, kind), {})


def _with_float32_scores(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, Tensor]:
    """The eager attention of the module's own file in transformers (soft-caps, sinks), in float32; z in the query's dtype."""
    eager = sys.modules[type(module).__module__].eager_attention_forward
    mask = None if attention_mask is None else cast_mask(attention_mask, torch.float32)
    z, pattern = eager(module, query.float(), key.float(), value.float(), mask, **options)
    return z.to(query.dtype), pattern


AttentionInterface.register(FLOAT32_SCORES, _with_float32_scores)
AttentionMaskInterface.register(FLOAT32_SCORES, eager_mask)


def _implementation(module: Any) -> str:
    return module.config._attn_implementation


@contextmanager
def attention_of(module: Any, implementation: str) -> Iterator[None]:
    """Run the block with another of transformers' implementations of attention."""
    before = _implementation(module)
    module.config._attn_implementation = implementation
    try:
        yield
    finally:
        module.config._attn_implementation = before


def reference_attention(module: PreTrainedModel, eager: bool) -> str:
    """The implementation of transformers against which a bridge is held: its eager one, with scores in float32 in 16 bits.

    Bloom, MPT, GPT-J and GPT-Neo have only their own eager attention, which does not differ by a large share of the logits.
    """
    wide = eager or module.dtype not in SIXTEEN_BITS or not module._can_set_attn_implementation()
    return "eager" if wide else FLOAT32_SCORES


def own_logits(module: PreTrainedModel, run: Callable[[], Tensor]) -> Tensor | None:
    """Logits by transformers' default, sdpa, of a model that has it."""
    if not module._supports_sdpa:
        return None
    with attention_of(module, "sdpa"):
        return run()


def find_own_attention(model: TransformerBridge, expected: Tensor | None, run: Callable[[], Tensor]) -> None:
    """Note whether the wrapped modules still compute `own_logits`, to the bit.

    They do not where TransformerLens, or this package, has taken a module's weight apart (a joint q, k, v) or reordered it.
    """
    if expected is None:
        return
    attentions: list[Any] = [block.attn for block in model.blocks]
    try:
        with _own(model, attentions):
            same = torch.equal(run(), expected)
    except (RuntimeError, TypeError, AttributeError):
        same = False
    for attention in attentions:
        attention.can_delegate = same


def runs_own_attention(model: TransformerBridge) -> bool:
    """Whether `own_attention` would run the model's attention by sdpa now: not in another dtype, in an eager model, under
    edits or hooks, and where `find_own_attention` says no."""
    attentions = _attentions(model)
    is_hooked = hooks.active_edits(model) or any(
        part.fwd_hooks for each in attentions for part in each.modules() if isinstance(part, HookPoint)
    )
    can_delegate = all(getattr(each, "can_delegate", False) and each.narrow for each in attentions)
    return bool(attentions) and can_delegate and not is_hooked


def _attentions(model: TransformerBridge) -> list[Any]:
    return [] if is_closed(model) else [block.attn for block in model.blocks]


@contextmanager
def own_attention(model: TransformerBridge) -> Iterator[None]:
    """Run the block as transformers runs a 16-bit model by default, with sdpa, where `runs_own_attention`."""
    if not runs_own_attention(model):
        yield
        return
    require_own_functions(cast(Any, model.original_model), str(model.cfg.model_name))  # "sdpa" may be registered anew
    with _own(model, _attentions(model)):
        yield


@contextmanager
def _own(model: TransformerBridge, attentions: list[Any]) -> Iterator[None]:
    with attention_of(model.original_model, "sdpa"):
        try:
            for attention in attentions:
                attention.delegates = True
            yield
        finally:
            for attention in attentions:
                attention.delegates = False
