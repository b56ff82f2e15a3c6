"""Precision of a pass: all of a float64 model in float64; and masked scores in any dtype.

`exact_arithmetic` is the reference against which rounding is measured. Hugging Face computes norms
and the softmax in float32 even in a float64 model, so that a "float64" run is good to 1e-7 only,
and finite differences stall near 1e-4.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from ostools.ground import OF_A_LEFT_HOOK, HookPoint, TransformerBridge
from ostools.hooks.register import (
    HookError,
    Order,
    active_edits,
    attached,
    model_block,
    with_input,
)
from ostools.hooks.sites import (
    Norm,
    checked_layers,
    norms,
    points,
)

SIXTEEN_BITS = (torch.bfloat16, torch.float16)


def positions(scores: Tensor) -> tuple[Int[Tensor, "query 1"], Int[Tensor, "1 key"]]:
    """Absolute positions of queries and keys; with a key/value cache the queries are the last of
    the keys.
    """
    queries, keys = scores.shape[-2:]
    key = torch.arange(keys, device=scores.device)
    return key[keys - queries :, None], key[None, :]


def lowest(tensor: Tensor) -> float:
    """The score of a key that must not be seen: the dtype's lowest number, as Hugging Face masks
    it.
    """
    return torch.finfo(tensor.dtype).min


def hidden(scores: Tensor) -> Tensor:
    """Mask of the keys that are masked out. Half the lowest number, because an additive mask leaves
    lowest + score, rounded.
    """
    return scores <= lowest(scores) / 2


def cast_mask(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """An additive mask in another dtype: the lowest number of one is infinite, or nothing much, in
    another.
    """
    if not mask.is_floating_point() or mask.dtype == dtype:
        return mask
    return mask.to(dtype).masked_fill(hidden(mask), torch.finfo(dtype).min)


@model_block
def exact_arithmetic(
    model: TransformerBridge, layers: Iterable[int] | None = None
) -> Iterator[None]:
    """Compute every norm and every softmax of a float64 model in float64, inside the block.

    layers: only those of these blocks, for a pass through one block alone.

    Gradients flow through the recomputed values. Edits are kept, whether they are entered before
    this block or inside it: the pattern is recomputed from the edited scores, and an edit of the
    pattern comes after that.

    Raises `HookError` for a model that is not float64, and if there is a hook on a norm's scale,
    because this block would undo it.
    """
    dtypes = {parameter.dtype for parameter in model.parameters()}
    if dtypes != {torch.float64}:
        raise HookError(
            f"exact_arithmetic: expected a float64 model, found {sorted(map(str, dtypes))}: cast a "
            "copy"
        )
    layer_indices = checked_layers(model, layers)
    inside = ("",) if layers is None else tuple(f"blocks.{layer}." for layer in layer_indices)
    exact = [norm for name, norm in norms(model).items() if name.startswith(inside)]
    _require_kept(model, exact)
    scores, patterns = (points(model, name, layer_indices) for name in ("scores", "pattern"))
    recomputed: list[tuple[HookPoint, HookPoint, Callable[[Tensor], Tensor]]] = [
        (norm.before, norm.after, norm) for norm in exact
    ]
    recomputed += [
        (scores[layer], patterns[layer], _softmax_of(model.blocks[layer].attn))
        for layer in patterns
    ]
    placements = [
        placement
        for before, after, function in recomputed
        for placement in with_input(before, after, partial(_replaced_by, function), Order.RECOMPUTE)
    ]
    with attached(placements, kind="exact-arithmetic"):
        yield


def _require_kept(model: TransformerBridge, exact: Sequence[Norm]) -> None:
    """Refuse, with `HookError`, an edit inside a norm that is computed anew."""
    undone = {f"{norm.name}.{part}" for norm in exact for part in ("hook_scale", "hook_normalized")}
    if edits := [edit for edit in active_edits(model) if edit.where in undone]:
        raise HookError(
            f"exact_arithmetic would undo the edit {edits[0].kind!r} at {edits[0].where}: leave "
            f"its block first{OF_A_LEFT_HOOK}"
        )


def _replaced_by(function: Callable[[Tensor], Tensor], x: Tensor, out: Tensor) -> Tensor:
    return function(x)


def _softmax_of(attention: Any) -> Callable[[Tensor], Tensor]:
    """The softmax over keys; over keys and a learnt sink, whose column is left out (gpt-oss)."""
    sinks = getattr(attention.original_component, "sinks", None)

    def softmax(scores: Tensor) -> Tensor:
        if sinks is None:
            return torch.softmax(scores, dim=-1)
        column = sinks.to(scores)[:, None, None].expand(*scores.shape[:-1], 1)
        return torch.softmax(torch.cat([scores, column], dim=-1), dim=-1)[..., :-1]

    return softmax
