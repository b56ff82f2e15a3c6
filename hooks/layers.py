"""Take whole sublayers out of a forward pass: the attention or the MLP of a block adds nothing to the residual stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from transformer_lens.model_bridge import TransformerBridge

from hooks.errors import HookError, nearest
from hooks.register import Order, attached
from hooks.sites import checked_layers, points

PARTS: dict[str, tuple[str, ...]] = {
    "attention": ("attention_output",),
    "mlp": ("mlp_output",),
    "both": ("attention_output", "mlp_output"),
}
"""The sites at which each part of a block enters the residual stream, behind a post-norm where there is one."""


@contextmanager
def ablate_layers(model: TransformerBridge, layers: Iterable[int], *, part: str = "attention") -> Iterator[None]:
    """Put 0 in the place of what the part "attention", "mlp" or "both" of these blocks adds to the residual stream.

    After a post-norm where there is one (Gemma 2 and 3), and with the biases: the skip connection alone is left, so that
    v^(l+1) = v^(l) bit for bit where both are out. It acts on each position alone, with or without a key/value cache.

    Raises `HookError` for layers that the model does not have, none at all, and an unknown part.
    """
    if part not in PARTS:
        raise HookError(f"ablate_layers: unknown part {part!r}: {nearest(part, PARTS)}")
    chosen = checked_layers(model, layers)
    placements = [
        (point, torch.zeros_like, Order.EDIT) for site in PARTS[part] for point in points(model, site, chosen).values()
    ]
    with attached(placements, kind="ablate_layers"):
        yield
