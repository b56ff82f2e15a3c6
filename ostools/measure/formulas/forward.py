"""One forward pass, read as the theorem reads it: patterns, norm scales and the local slopes of
every block.

The formulas are only as good as their reading of the model, so every block is checked on the spot:
the folded weights, applied to the captured residual stream, must give the attention and MLP outputs
that the model itself computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ostools import hooks
from ostools.ground import InputError, TransformerBridge
from ostools.measure.formulas.block import SITES, BlockTerms
from ostools.measure.formulas.weights import require_described
from ostools.measure.passes.contexts import (
    PATTERN_EDITS,
    BlockCall,
    noted_calls,
    require_no_edits,
    true_arithmetic,
)


@dataclass(frozen=True)
class Forward:
    """A forward pass over one prompt; blocks are read one at a time, from the last to the first.

    Each block runs again when its turn comes, so that never more than one block's patterns are in
    memory.
    """

    model: TransformerBridge
    norms: Mapping[str, hooks.Norm]
    names: Sequence[str]  # the sites that the model has: looked up once
    calls: list[BlockCall]
    final_norm_scale: Float[Tensor, " pos"]

    def blocks(self) -> Iterator[BlockTerms]:
        """Blocks, last first, each checked against what the model computed."""
        for layer in reversed(range(len(self.calls))):
            block = BlockTerms(self.model, layer, self._read(layer), self.norms)
            block.check()
            yield block
            del block

    def _read(self, layer: int) -> Mapping[str, Tensor]:
        args, kwargs = self.calls[layer]
        with (
            torch.no_grad(),
            true_arithmetic(self.model, [layer]),
            hooks.capture(self.model, *self.names, layers=[layer]) as record,
        ):
            self.model.blocks[layer](*args, **kwargs)
        return {name: record[name][layer][0] for name in self.names}


def forward(model: TransformerBridge, ids: Int[Tensor, " pos"]) -> Forward:
    """Run the prompt once, and note how each block was called.

    Raises `InputError` for blocks that no formula describes (experts), under an active edit that
    the formulas do not know (an ablated head, a hook of somebody else), and for numbers that are
    not finite.
    """
    reason = "formulas would describe another network (sensitivity() measures whatever runs)"
    require_no_edits("bounds", model, reason, but=PATTERN_EDITS)
    available = hooks.available_sites(model)
    require_described(model, available)
    names = [name for name in SITES if name in available]
    last = int(model.cfg.n_layers) - 1
    with (
        torch.no_grad(),
        true_arithmetic(model),
        noted_calls(model) as calls,
        hooks.capture(model, "final_norm_scale") as record,
        hooks.capture(model, "residual_post", layers=[last]) as at_end,
    ):
        logits = model(ids[None].to(next(model.parameters()).device), logits_to_keep=1)
    # What is not finite before reaches the last block's residual stream; each block's own check
    # sees the rest.
    if not all(bool(x.isfinite().all()) for x in (logits, at_end["residual_post"][last])):
        raise InputError(
            "the forward pass on this prompt is not finite; the model's weights or its dtype are "
            "broken"
        )
    scale = record["final_norm_scale"][0, :, 0].double()
    return Forward(model, hooks.norms(model), names, calls, scale)
