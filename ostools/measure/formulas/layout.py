"""Layout of a block, read off its modules: which norms stand where, and whether attention and MLP are parallel.

    sequential:  z = v + P1 attention(norm1(v)),   v' = z + P2 mlp(norm2(z))
    parallel:    v' = v + attention(norm1(v)) + mlp(norm2(v)),   norm2 = norm1 where the block has one norm only (Phi, Falcon)

norm1 and norm2 are the identity where there is none before (OLMo 2), P1 and P2 where there is none behind.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.generalized_components import MoEBridge

import hooks
from hooks import Norm
from ostools.ground.errors import InputError

_NEEDED = (
    "residual_pre",
    "residual_post",
    "scores",
    "pattern",
    "attention_output",
    "mlp_gate",
    "mlp_hidden",
    "mlp_output",
)


@dataclass(frozen=True)
class Layout:
    """The norms of a block, None where it has none there; `parallel`: attention and MLP both read what enters the block.

    `shared`: the MLP reads the same norm as attention; `gated`: it has W_gate and W_up.
    """

    before_attention: Norm | None
    before_mlp: Norm | None
    after_attention: Norm | None
    after_mlp: Norm | None
    parallel: bool
    shared: bool
    gated: bool


def layout(layer: int, norms: Mapping[str, Norm], sites: Container[str]) -> Layout:
    """The layout of one block of a model with these norms and sites (`hooks.available_sites`)."""
    ln1, ln2, post1, post2 = (norms.get(f"blocks.{layer}.{name}") for name in ("ln1", "ln2", "ln1_post", "ln2_post"))
    parallel = "residual_mid" not in sites
    shared = parallel and ln2 is None
    return Layout(ln1, ln1 if shared else ln2, post1, post2, parallel, shared, "mlp_up" in sites)


def is_parallel(model: TransformerBridge) -> bool:
    """Whether there is nothing between attention and MLP."""
    return "residual_mid" not in hooks.available_sites(model)


def require_described(model: TransformerBridge, sites: Container[str]) -> None:
    """`InputError` where the blocks are of a kind that no formula here describes; `sites`: those that the model has."""
    mlp, attention = model.blocks[0].mlp, model.blocks[0].attn
    if isinstance(mlp, MoEBridge):
        raise InputError(
            f"the formulas do not describe {model.cfg.architecture}: expected one MLP a block, found experts, of which a "
            "router chooses by the token; measure with sensitivity(), which goes through autograd"
        )
    missing = [name for name in _NEEDED if name not in sites]
    missing += [name for name in ("W_Q", "W_K", "W_V", "W_O") if not hasattr(attention, name)]
    missing += [name for name in ("W_in", "W_out") if not hasattr(mlp, name)]
    if missing:
        raise InputError(
            f"the formulas do not describe {model.cfg.architecture}: expected blocks with {missing[0]}, found none; measure "
            "with sensitivity(), which goes through autograd"
        )


def position_bias(
    model: TransformerBridge, forward_kwargs: Mapping[str, Any], pos: int
) -> Float[Tensor, "head 1 key"] | None:
    """Bias that ALiBi adds to a block's scores, out of the block's arguments; None where it adds nothing.

    The same for every prompt of a batch, because none is padded. MPT makes it for its longest prompt, and reads its end.
    """
    bias = forward_kwargs.get("alibi", forward_kwargs.get("position_bias"))
    return None if bias is None else bias.reshape(-1, int(model.cfg.n_heads), 1, bias.shape[-1])[0, ..., -pos:]


def activation(mlp: Any) -> Any:
    """The activation function of an MLP."""
    function = hooks.activation_of(mlp)
    if function is None:
        raise InputError(f"the formulas do not describe {type(mlp).__name__}: expected an activation, found none")
    return function


def identity_scale(like: Float[Tensor, "pos d_model"]) -> Float[Tensor, " pos"]:
    """r(x) of no norm."""
    return torch.ones_like(like[:, 0])
