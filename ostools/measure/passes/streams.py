"""A forward pass that begins in the middle: at the residual stream that a block reads."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.generalized_components import BloomBlockBridge


def run_from(
    model: TransformerBridge, stream: Float[Tensor, "batch pos d_model"], layer: int = 0
) -> Float[Tensor, "batch 1 d_vocab"]:
    """The last token's logits of a pass whose block `layer` reads `stream` as v^(layer); differentiable in it.

    TransformerLens' own `start_at_layer`, which Bloom's block leaves out: there the stream would go through the norm of the
    embeddings once more, and into block 0. Blocks below `layer` run too, and what they give is not read.
    """

    def read(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        return (stream, *args[1:]), {name: value for name, value in kwargs.items() if name != "hidden_states"}

    block = model.blocks[layer]
    if not isinstance(block, BloomBlockBridge):
        return model(stream, start_at_layer=layer, logits_to_keep=1)
    handle = block.register_forward_pre_hook(read, with_kwargs=True)
    try:
        return model(stream, start_at_layer=layer, logits_to_keep=1)
    finally:
        handle.remove()
