"""The sizes of a model that decide what computing with it takes: of a loaded one, or by its configuration before that;
and how many threads they are worth."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformer_lens.model_bridge import TransformerBridge

from ostools.models.recast import BLOCK, SMALL_WEIGHT, Recast

SMALL = 20_000_000
"""Below this many parameters one thread computes as fast as several."""


@dataclass(frozen=True)
class Shape:
    """A decoder in numbers. `gated`: its MLP has W_gate and W_up; `element`: bytes of one of its numbers; `cast`: they are made
    where they are read, of numbers of another dtype (`models.view_in`) or that lie elsewhere (a device map); `whole`: a large
    table is then made in one piece."""

    n_layers: int
    d_model: int
    n_heads: int
    n_key_value_heads: int
    d_head: int
    d_mlp: int
    d_vocab: int
    context: int
    gated: bool
    element: int
    device: str
    cast: bool
    whole: bool = False

    @classmethod
    def of(cls, model: TransformerBridge) -> Shape:
        """Of a loaded model, on its device and in its dtype."""
        like = next(model.parameters())
        made = [weight for weight in model.parameters() if isinstance(weight, Recast)]
        whole = any(weight.whole and weight.numel() > BLOCK for weight in made)
        found = cls.of_config(model.original_model.config, like.dtype, like.device.type)
        return replace(found, cast=bool(made), whole=whole)

    @classmethod
    def of_config(cls, config: Any, dtype: torch.dtype, device: str) -> Shape:
        """Of a Hugging Face configuration, for a model in `dtype` on that kind of device."""
        config = config.get_text_config()
        d_model, n_heads = int(config.hidden_size), int(config.num_attention_heads)
        d_mlp = getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None) or 4 * d_model
        return cls(
            n_layers=int(config.num_hidden_layers),
            d_model=d_model,
            n_heads=n_heads,
            n_key_value_heads=int(getattr(config, "num_key_value_heads", None) or n_heads),
            d_head=int(getattr(config, "head_dim", None) or d_model // n_heads),
            d_mlp=int(d_mlp),
            d_vocab=int(config.vocab_size),
            context=int(config.max_position_embeddings),
            gated=config.model_type != "gpt2",
            element=dtype.itemsize,
            device=device,
            cast=False,
        )

    @property
    def block_parameters(self) -> int:
        """Of the matrices of one block."""
        attention = self.d_model * self.d_head * (2 * self.n_heads + 2 * self.n_key_value_heads)
        return attention + (3 if self.gated else 2) * self.d_model * self.d_mlp

    def view_bytes(self, element: int) -> int:
        """What reading the weights as numbers of `element` bytes takes (`view_in`).

        Small ones are all cast; of large ones the largest part at a time, a matrix of a block or a block of the unembedding.
        """
        matrix = self.d_model * max(self.d_mlp, self.n_heads * self.d_head)
        table = self.d_vocab * self.d_model
        small = self.parameters * element if max(matrix, table) * element <= SMALL_WEIGHT else 0
        return small or max(matrix, table if self.whole else min(table, BLOCK)) * element

    @property
    def parameters(self) -> int:
        """Of all blocks and of one embedding: those that a token is multiplied with."""
        return self.n_layers * self.block_parameters + self.d_vocab * self.d_model

    def site_bytes(self, pos: int) -> int:
        """Bytes of every block's sites over a prompt of `pos` tokens: scores and patterns, and vectors of each position."""
        per_layer = 2 * self.n_heads * pos**2 + pos * (7 * self.d_model + 3 * self.d_mlp)
        return self.n_layers * per_layer * self.element


def one_is_enough(model: TransformerBridge) -> bool:
    """Whether matrices are too small to share out: on busy cores two threads wait for each other and take far longer.

    False where the user said how many there are to be (OMP_NUM_THREADS).
    """
    return "OMP_NUM_THREADS" not in os.environ and sum(weight.numel() for weight in model.parameters()) < SMALL
