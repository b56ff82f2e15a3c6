"""Attention whose hooks act, where TransformerLens' bridges lack it.

In OPT, GPT-J and GPT-Neo TransformerLens 4.3 lets Hugging Face's module compute, and fires the
hooks of scores and patterns
afterwards: what a hook makes of them goes nowhere, and a frozen pattern is not frozen. Its
attention for rotated queries and keys, which it has for most families, computes step by step. It
takes the place of the other here, with what these modules make for themselves: OPT nothing, GPT-J
its rotation, GPT-Neo its windows and scores that no 1 / sqrt(d_head) multiplies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens.model_bridge.architecture_adapter import ArchitectureAdapter
from transformer_lens.model_bridge.generalized_components import (
    LinearBridge,
    PositionEmbeddingsAttentionBridge,
)
from transformers import PreTrainedConfig


class PairedLinear(LinearBridge):
    """W_Q or W_K of a head that rotates components 2k and 2k + 1 together, its outputs as rotation
    by halves reads them.

    `weight` has its rows in that order. The same order of a query and of a key changes no score.
    `hook_out` shows what the layer itself gives.
    """

    def __init__(self, name: str, n_heads: int, d_head: int, rotary_dim: int) -> None:
        super().__init__(name)
        places = torch.arange(rotary_dim)
        head = torch.cat([places[::2], places[1::2], torch.arange(rotary_dim, d_head)])
        self._order = (d_head * torch.arange(n_heads)[:, None] + head).flatten()

    @property
    def weight(self) -> Float[Tensor, "out d_model"]:
        """The rows of the layer's weight in the order of the outputs."""
        original: Any = self.original_component
        return original.weight[self._order.to(original.weight.device)]

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return super().forward(input, *args, **kwargs)[..., self._order.to(input.device)]


class PreparedAttention(PositionEmbeddingsAttentionBridge):
    """Attention that makes some of its arguments itself, where the model does not hand them to it
    (a rotation, a window).
    """

    def prepared(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a call, with those that it makes."""
        return kwargs

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return super().forward(*args, **self.prepared(kwargs))


class GPTJAttention(PreparedAttention):
    """Rotation of the first `rotary_dim` components of a head, from the table that each of GPT-J's
    modules holds.
    """

    def prepared(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        original: Any = self.original_component
        angles = original.embed_positions[kwargs["position_ids"]].to(original.out_proj.weight.dtype)
        sin, cos = angles.chunk(2, dim=-1)
        return kwargs | {
            "position_embeddings": (torch.cat([cos, cos], -1), torch.cat([sin, sin], -1))
        }


class GPTNeoAttention(PreparedAttention):
    """Scores q . k without a factor; in a local layer a query sees the `window_size` keys up to
    itself, by their places.
    """

    def set_original_component(self, component: nn.Module) -> None:
        settings: Any = component
        settings.scaling, settings.layer_idx = 1.0, settings.layer_id
        super().set_original_component(component)

    def prepared(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        original: Any = self.original_component
        mask = kwargs["attention_mask"]
        queries, keys = mask.shape[-2:]
        near = original.bias[..., keys - queries : keys, :keys]
        return kwargs | {"attention_mask": mask.masked_fill(~near, torch.finfo(mask.dtype).min)}


_ATTENTION: dict[str, type[PositionEmbeddingsAttentionBridge]] = {
    "OPTForCausalLM": PositionEmbeddingsAttentionBridge,
    "GPTJForCausalLM": GPTJAttention,
    "GPTNeoForCausalLM": GPTNeoAttention,
}
"""The attention that takes the place of TransformerLens' own, by architecture."""


def adapting(config: PreTrainedConfig) -> Callable[[ArchitectureAdapter], None]:
    """What `build_bridge_from_module(..., post_adapter_hook=...)` does for a model of this
    configuration.
    """

    def adapt(adapter: ArchitectureAdapter) -> None:
        # TransformerLens reads four spellings of eps, and not StarCoder 2's.
        adapter.cfg.eps = getattr(config, "norm_epsilon", adapter.cfg.eps)
        _put_acting_attention(adapter)

    return adapt


def _put_acting_attention(adapter: ArchitectureAdapter) -> None:
    """Put attention whose hooks act into an adapter."""
    attention = _ATTENTION.get(str(adapter.cfg.architecture))
    if attention is None:
        return
    mapping: Any = adapter.component_mapping
    cfg: Any = adapter.cfg
    blocks = mapping["blocks"].submodules
    parts = blocks["attn"].submodules
    if attention is GPTJAttention:
        rotary_dim = int(cfg.rotary_dim)
        # Told, because a rotation of half of a head is otherwise taken for one whose cosines are
        # written once.
        cfg.rotary_pct = rotary_dim / cfg.d_head
        parts |= {
            key: PairedLinear(parts[key].name, cfg.n_heads, cfg.d_head, rotary_dim)
            for key in ("q", "k")
        }
    if (
        cfg.architecture == "OPTForCausalLM"
    ):  # its MLP, and the norm before it, run on [batch * pos, d_model]
        blocks["ln2"].hook_scale.hook_conversion = blocks["ln2"].hook_in.hook_conversion
    blocks["attn"] = attention(name=blocks["attn"].name, config=cfg, submodules=parts)
