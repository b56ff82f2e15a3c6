"""Full float64 arithmetic: the reference against which rounding is measured.

Hugging Face computes norms and the softmax in float32 even in a float64 model, so that a "float64" run is good to 1e-7
only, and finite differences stall near 1e-4. These hooks compute both in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from transformer_lens.hook_points import HookPoint
from transformer_lens.model_bridge import TransformerBridge

from hooks.errors import HookError
from hooks.norms import Norm, norms
from hooks.register import HookBody, active_edits, attached
from hooks.sites import points


@contextmanager
def exact_arithmetic(model: TransformerBridge) -> Iterator[None]:
    """Run the block with every norm and every softmax of a float64 model computed in float64.

    Gradients flow through the recomputed values. Edits entered before this block (masks, rescaled scores) are kept,
    since the pattern is recomputed from the edited scores; an edit of what is recomputed has to be entered after.

    Raises `HookError` for a model that is not float64, and under an edit that the recomputation would undo.
    """
    dtypes = {parameter.dtype for parameter in model.parameters()}
    if dtypes != {torch.float64}:
        raise HookError(f"exact_arithmetic: expected a float64 model, found {sorted(map(str, dtypes))}: cast a copy")
    recomputed = (*norms(model), *(f"blocks.{layer}.attn.hook_pattern" for layer in range(int(model.cfg.n_layers))))
    for edit in active_edits(model):
        if edit.kind != "exact-arithmetic" and edit.where.startswith(recomputed):
            raise HookError(
                f"exact_arithmetic would undo {edit.kind!r} at {edit.where}: enter that edit inside this block"
            )
    placements: list[tuple[HookPoint, HookBody]] = []
    for norm in norms(model).values():
        placements.extend(_exact_norm(norm))
    scores, patterns = points(model, "scores"), points(model, "pattern")
    for layer in patterns:
        placements.extend(_exact_softmax(scores[layer], patterns[layer]))
    with attached(placements, kind="exact-arithmetic"):
        yield


def _exact_norm(norm: Norm) -> list[tuple[HookPoint, HookBody]]:
    seen: list[Tensor] = []

    def before(x: Tensor) -> None:
        seen[:] = [x]

    def after(out: Tensor) -> Tensor:
        return norm(seen.pop())

    return [(norm.before, before), (norm.after, after)]


def _exact_softmax(scores: HookPoint, pattern: HookPoint) -> list[tuple[HookPoint, HookBody]]:
    seen: list[Tensor] = []

    def before(x: Tensor) -> None:
        seen[:] = [x]

    def after(out: Tensor) -> Tensor:
        return torch.softmax(seen.pop(), dim=-1)

    return [(scores, before), (pattern, after)]
