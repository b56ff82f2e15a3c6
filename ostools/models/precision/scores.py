"""Attention of a 16-bit model as people run it: between queries, keys, values and its output it
computes in float32.

    scores = s q k^T + mask,   alpha = softmax(scores),   z = alpha v     in float32;
    q, k, v and z are rounded to 16 bits

sdpa (transformers' default), flash attention and servers keep scores and softmax in float32.
transformers' eager attention, which TransformerLens writes again, rounds the scores to 16 bits
before the softmax. Where scores are large that is another
model: those of Qwen 2.5 reach 12,400, where neighbouring bfloat16 numbers are 64 apart. That
arithmetic is a choice with a name, "bfloat16-eager".

Hooks of scores and patterns see float32, all others the model's dtype. In float32 and float64
nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from ostools import hooks
from ostools.ground import (
    HookPoint,
    InputError,
    PreTrainedModel,
    TransformerBridge,
    original_model,
    unknown_name,
)
from ostools.hooks import SIXTEEN_BITS
from ostools.hooks.sites import is_closed
from ostools.models.families import Family
from ostools.theory.distances import DTYPES

if TYPE_CHECKING:
    from ostools.models.generic.parts import GenericBridge
    from ostools.models.lens import Float32Scores

ARITHMETICS: dict[str, tuple[torch.dtype, bool]] = {
    name: (dtype, False) for name, dtype in DTYPES.items()
} | {f"{name}-eager": (dtype, True) for name, dtype in DTYPES.items() if dtype in SIXTEEN_BITS}
"""The dtype, and whether attention's scores are rounded to it, of every name that `load_model`
takes.
"""
AUTO = "auto"
"""The name that `load_model` takes for the dtype that a file stores."""


def arithmetic_named(name: str | torch.dtype) -> tuple[torch.dtype, bool]:
    """The dtype of that name, and whether attention's scores are rounded to it; `InputError` for an
    unknown name.
    """
    text = str(name).removeprefix("torch.")
    if text not in ARITHMETICS:
        raise unknown_name("dtype", text, (AUTO, *ARITHMETICS))
    return ARITHMETICS[text]


def check_arithmetic(family: Family, eager: bool) -> None:
    """`InputError` for eager 16-bit attention of a family of which TransformerLens does not write
    it again as it is.
    """
    if eager and family.not_eager is not None:
        raise InputError(
            f"expected attention with its scores in float32 for {family.name}, found an eager "
            f"dtype: {family.not_eager}; ask for 'bfloat16' or 'float16'"
        )


def is_eager(model: TransformerBridge) -> bool:
    """Whether the model, if in 16 bits, rounds attention's scores. A bridge does that
    TransformerLens alone has made.
    """
    return getattr(model.cfg, "eager_scores", True)


def put_scores(model: TransformerBridge, eager: bool) -> None:
    """Let the attention of every block keep its scores in float32 if the model is in 16 bits;
    `eager`: round them.

    Raises `InputError` for a model by the generic route whose own code computes its attention.
    """
    from ostools.models.lens import FLOAT32_SCORES, Float32Scores, put_before

    setattr(model.cfg, "eager_scores", eager)  # noqa: B010 (its class does not declare it)
    if is_closed(model):
        dtype = next(model.parameters()).dtype
        wide = eager or dtype not in SIXTEEN_BITS
        if not wide and not cast("GenericBridge", model).asks_interface:
            name = str(dtype).removeprefix("torch.")
            raise InputError(
                "expected attention that transformers can compute with scores in float32, found "
                f"{model.cfg.architecture}, whose own code computes it: ask for float32, or for "
                f"'{name}-eager', as it is"
            )
        config = original_model(model).config
        config._attn_implementation = "eager" if wide else FLOAT32_SCORES
        return
    for attention in _attentions(model):
        if not isinstance(attention, Float32Scores):
            put_before(attention)
        attention.eager, attention.delegates = eager, False


@contextmanager
def attention_of(module: PreTrainedModel, implementation: str) -> Iterator[None]:
    """Run the block with another of transformers' implementations of attention."""
    before = module.config._attn_implementation
    module.config._attn_implementation = implementation
    try:
        yield
    finally:
        module.config._attn_implementation = before


def reference_attention(module: PreTrainedModel, eager: bool) -> str:
    """The implementation of transformers against which a bridge is held: its eager one, with scores
    in float32 in 16 bits.

    Bloom, MPT, GPT-J and GPT-Neo have only their own eager attention, which does not differ by a
    large share of the logits.
    """
    from ostools.models.lens import FLOAT32_SCORES

    wide = eager or module.dtype not in SIXTEEN_BITS or not module._can_set_attn_implementation()
    return "eager" if wide else FLOAT32_SCORES


def find_own_attention(
    model: TransformerBridge, expected: Tensor | None, run: Callable[[], Tensor]
) -> None:
    """Note whether the wrapped modules still compute what they gave by sdpa, to the bit; None: not
    tried.

    They do not where TransformerLens, or this package, has taken a module's weight apart (a joint
    q, k, v) or reordered it.
    """
    if expected is None:
        return
    try:
        with own_attention(model, always=True):
            same = torch.equal(run(), expected)
    except (RuntimeError, TypeError, AttributeError):
        same = False
    for attention in _attentions(model):
        attention.can_delegate = same


def runs_own_attention(model: TransformerBridge) -> bool:
    """Whether `own_attention` would run the model's attention by sdpa now: not in another dtype, in
    an eager model, under edits or hooks, and where `find_own_attention` says no."""
    attentions = _attentions(model)
    is_hooked = hooks.active_edits(model) or any(
        part.fwd_hooks
        for attention in attentions
        for part in attention.modules()
        if isinstance(part, HookPoint)
    )
    can_delegate = all(
        getattr(attention, "can_delegate", False) and attention.narrow for attention in attentions
    )
    return bool(attentions) and can_delegate and not is_hooked


def _attentions(model: TransformerBridge) -> list[Float32Scores]:
    return [] if is_closed(model) else [cast("Float32Scores", block.attn) for block in model.blocks]


@contextmanager
def own_attention(model: TransformerBridge, always: bool = False) -> Iterator[None]:
    """Run the block as transformers runs a 16-bit model by default, with sdpa, where
    `runs_own_attention` (or always).
    """
    attentions = _attentions(model) if always or runs_own_attention(model) else []
    if not attentions:
        yield
        return
    from ostools.models.files.checks import require_own_functions

    # "sdpa" may have been registered anew
    require_own_functions(str(model.cfg.model_name), original_model(model).config)
    with attention_of(original_model(model), "sdpa"):
        try:
            for attention in attentions:
                attention.delegates = True
            yield
        finally:
            for attention in attentions:
                attention.delegates = False
