"""Forward passes that begin in the middle, at the residual stream that a block reads, or end before the unembedding."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.generalized_components import BloomBlockBridge

from hooks.register import before_modules


def no_logits(model: TransformerBridge) -> int | Int[Tensor, " none"]:
    """`logits_to_keep` of a pass whose logits nobody reads: of no token, because a large unembedding costs as much as many
    blocks; of the last token where a hook waits for them."""
    end = (model, model.original_model, *model.unembed.modules())
    hooked = any(module._forward_hooks or module._forward_pre_hooks for module in end)
    return 1 if hooked else torch.empty(0, dtype=torch.int64)


def run_from(
    model: TransformerBridge,
    stream: Float[Tensor, "batch pos d_model"],
    layer: int = 0,
    logits_to_keep: int | Int[Tensor, " none"] = 1,
) -> Float[Tensor, "batch kept d_vocab"]:
    """The last token's logits of a pass whose block `layer` reads `stream` as v^(layer); differentiable in it.

    TransformerLens' own `start_at_layer`, which Bloom's block leaves out: there the stream would go through the norm of the
    embeddings once more, and into block 0. Blocks below `layer` run too, and what they give is not read.
    """

    def read(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        return (stream, *args[1:]), {name: value for name, value in kwargs.items() if name != "hidden_states"}

    block = model.blocks[layer]
    if not isinstance(block, BloomBlockBridge):
        return model(stream, start_at_layer=layer, logits_to_keep=logits_to_keep)
    with before_modules({f"blocks.{layer}": block}, read):
        return model(stream, start_at_layer=layer, logits_to_keep=logits_to_keep)
