"""Full float64 arithmetic: the reference against which rounding is measured.

Hugging Face computes norms and the softmax in float32 even in a float64 model, so that a "float64" run is good to 1e-7
only, and finite differences stall near 1e-4. These hooks compute both in float64.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from hooks.errors import HookError
from hooks.norms import norms
from hooks.register import Order, active_edits, attached, with_input
from hooks.sites import checked_layers, points


@contextmanager
def exact_arithmetic(model: TransformerBridge, layers: Iterable[int] | None = None) -> Iterator[None]:
    """Run the block with every norm and every softmax of a float64 model computed in float64.

    `layers`: only those of these blocks, for a pass through one block alone.

    Gradients flow through the recomputed values. Edits are kept, whether their block is entered before or inside this one:
    the pattern is recomputed from the edited scores, and an edit of the pattern comes after that.

    Raises `HookError` for a model that is not float64, and under a hook on a norm's scale, which it would undo.
    """
    dtypes = {parameter.dtype for parameter in model.parameters()}
    if dtypes != {torch.float64}:
        raise HookError(f"exact_arithmetic: expected a float64 model, found {sorted(map(str, dtypes))}: cast a copy")
    chosen = checked_layers(model, layers)
    inside = tuple(f"blocks.{layer}." for layer in chosen)
    exact = {name: norm for name, norm in norms(model).items() if layers is None or name.startswith(inside)}
    undone = tuple(f"{name}.{part}" for name in exact for part in ("hook_scale", "hook_normalized"))
    for edit in active_edits(model):
        if edit.where in undone:
            raise HookError(
                f"exact_arithmetic would undo the edit {edit.kind!r} at {edit.where}: leave its block first"
            )
    scores, patterns = points(model, "scores", chosen), points(model, "pattern", chosen)
    recomputed = [(norm.before, norm.after, norm) for norm in exact.values()]
    recomputed += [(scores[layer], patterns[layer], _softmax) for layer in patterns]
    placements = [
        placement
        for before, after, function in recomputed
        for placement in with_input(before, after, lambda x, out, function=function: function(x), Order.RECOMPUTE)
    ]
    with attached(placements, kind="exact-arithmetic"):
        yield


def _softmax(scores: Tensor) -> Tensor:
    return torch.softmax(scores, dim=-1)
