"""A copy of a model in another dtype, with the user's own model untouched.

`bridge.to(bfloat16)` and back leaves a 0.09 error in the logits: nothing here casts in place.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint
from transformer_lens.model_bridge import TransformerBridge

import hooks
from ostools.ground.errors import InputError
from ostools.models.describe import metadata_of, refuse_processed, remember


def cast_copy(model: TransformerBridge, dtype: torch.dtype) -> TransformerBridge:
    """A deep copy of `model` whose weights are rounded to `dtype`: what loading the same weights in `dtype` gives.

    Rotary frequencies stay float32, as transformers loads them; the tokenizer is shared. Memory: one copy in the new
    dtype. Raises `InputError` while hooks are on the model: the copy would run them, and they would not know it.
    """
    refuse_processed(model)
    _refuse_hooked(model)
    # deepcopy takes what the memo already holds, so that no weight ever exists in a third form.
    memo: dict[int, object] = {id(model.tokenizer): model.tokenizer}
    _cast_parameters(model, dtype, memo)
    for name, buffer in model.named_buffers():
        if buffer.is_floating_point() and not name.endswith("inv_freq"):
            memo[id(buffer)] = buffer.detach().to(dtype, copy=True)
    result: TransformerBridge = copy.deepcopy(model, memo)
    for block in result.blocks:
        # TransformerLens' own hooks are closures over the block that they were made for: a copied one would write into the
        # original, and raise once that is gone.
        block._teardown_capture_hooks()
        block._maybe_wire_capture_hooks()
    for module in result.modules():
        exact = getattr(module, "scalar_embed_scale", None)
        if isinstance(exact, float):  # Gemma's sqrt(d_model): rounded once, not through the old dtype
            module.embed_scale.fill_(exact)  # pyright: ignore[reportCallIssue]
    result.cfg.dtype = dtype
    result.original_model.config.dtype = dtype  # pyright: ignore[reportArgumentType]
    remember(result, metadata_of(model))
    return result


def _cast_parameters(model: TransformerBridge, dtype: torch.dtype, memo: dict[int, object]) -> None:
    """Put the cast of every parameter into deepcopy's memo, views (GPT-2's q, k and v) as views of the cast."""
    bases: dict[int, list[tuple[Tensor, Tensor]]] = {}
    for parameter in sorted(model.parameters(), key=lambda tensor: -tensor.numel()):
        old = parameter.detach()
        of_storage = bases.setdefault(old.untyped_storage().data_ptr(), [])
        for base, cast in of_storage:
            offset = old.storage_offset() - base.storage_offset()
            if base.is_contiguous() and offset >= 0 and offset + _extent(old) <= base.numel():
                new = cast.as_strided(old.shape, old.stride(), offset)
                break
        else:
            new = old.to(dtype, copy=True)
            of_storage.append((old, new))
        memo[id(parameter)] = nn.Parameter(new, requires_grad=parameter.requires_grad)


def _extent(tensor: Tensor) -> int:
    """How many elements of its storage a tensor reaches over."""
    return 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))


def _refuse_hooked(model: TransformerBridge) -> None:
    observed = [module.name for module in model.modules() if isinstance(module, HookPoint) and module.fwd_hooks]
    placed = [edit.where for edit in hooks.active_edits(model)] or observed
    if placed:
        raise InputError(
            f"expected a model without hooks to copy, found one at {placed[0]}: leave its with-block first, and open "
            "it again on the copy"
        )
