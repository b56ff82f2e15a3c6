"""Layout of a block, read off its modules, and its weights as the theorem's operators, with every
gain folded in.

    sequential:  z = v + P1 attention(norm1(v)),   v' = z + P2 mlp(norm2(z))
    parallel:    v' = v + attention(norm1(v)) + mlp(norm2(v)),   norm2 = norm1 where the block has one norm only (Phi, Falcon)

    attention of head h:  B_h = diag(gp1) W_O^h W_V^h diag(g1) = left_h right_h        (rank d_head)
    MLP:                  D_j = (1 / (rp2_j r2_j)) down (diag(p_j) gate + diag(q_j) up)
    final norm:           diag(g3) / r3_n

norm1 and norm2 are the identity where there is none before (OLMo 2), P1 and P2 where there is none
behind. gp1, gp2 are the gains of the norms after attention and MLP (Gemma 2, 3, OLMo 2), 1 where
there are none; so are g1, g2 without a norm before. In a parallel block with one norm g2 is g1. A
LayerNorm also takes the mean off, which is folded in as a projection. Grouped heads are expanded:
query head h reads h // (H / n_kv). A factor on what a sublayer adds (Granite) is part of W_O and of
down.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ostools import hooks
from ostools.ground.errors import InputError
from ostools.ground.lens import MoEBridge, TransformerBridge
from ostools.hooks import Norm
from ostools.hooks.sites import is_closed
from ostools.models.lazy_cast import dense

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
    """The norms of a block, None where it has none there; `parallel`: attention and MLP both read
    what enters the block.

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
    ln1, ln2, post1, post2 = (
        norms.get(f"blocks.{layer}.{name}") for name in ("ln1", "ln2", "ln1_post", "ln2_post")
    )
    parallel = "residual_mid" not in sites
    shared = parallel and ln2 is None
    return Layout(ln1, ln1 if shared else ln2, post1, post2, parallel, shared, "mlp_up" in sites)


def is_parallel(model: TransformerBridge) -> bool:
    """Whether there is nothing between attention and MLP."""
    return "residual_mid" not in hooks.available_sites(model)


def require_described(model: TransformerBridge, sites: Container[str]) -> None:
    """`InputError` where the blocks are of a kind that no formula here describes; `sites`: those
    that the model has.
    """
    if is_closed(model):
        raise InputError(
            f"the formulas do not describe {model.cfg.architecture}: no record says what is inside its blocks"
        )
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


def activation(mlp: Any) -> Any:
    """The activation function of an MLP."""
    function = hooks.activation_of(mlp)
    if function is None:
        raise InputError(
            f"the formulas do not describe {type(mlp).__name__}: expected an activation, found none"
        )
    return function


@dataclass(frozen=True)
class BlockWeights:
    """One block's operators. `up` is None where the MLP has no gate; `bare_*` lack the norms'
    gains.

    Biases (zero where there are none) move no derivative; they are here so that the operators can
    be checked against what the model computes: `value_bias` of a head's value, `gate_bias` and
    `up_bias` of what the MLP reads, with the norm's own bias in them; `out_bias` and `down_bias` of
    what is added, with the post-norm's gain.
    """

    left_factor: Float[Tensor, "head d_model d_head"]
    right: Float[Tensor, "head d_head d_model"]
    down: Float[Tensor, "d_model d_mlp"]
    gate: Float[Tensor, "d_mlp d_model"]
    up: Float[Tensor, "d_mlp d_model"] | None
    bare_down: Float[Tensor, "d_model d_mlp"]
    bare_gate: Float[Tensor, "d_mlp d_model"]
    bare_up: Float[Tensor, "d_mlp d_model"] | None
    gain_1: Float[Tensor, ""]
    gain_2: Float[Tensor, ""]
    value_bias: Float[Tensor, "head d_head"]
    out_bias: Float[Tensor, " d_model"]
    gate_bias: Float[Tensor, " d_mlp"]
    up_bias: Float[Tensor, " d_mlp"]
    down_bias: Float[Tensor, " d_model"]


def block_weights(model: TransformerBridge, layer: int, layout: Layout) -> BlockWeights:
    """Read one block of the model; `gain_1`, `gain_2` are ||g1||_inf and ||g2||_inf (0 there makes
    beta infinite).
    """
    ln1, ln2, post1, post2 = (
        layout.before_attention,
        layout.before_mlp,
        layout.after_attention,
        layout.after_mlp,
    )
    attention, mlp = model.blocks[layer].attn, model.blocks[layer].mlp
    scale = hooks.residual_scale(model)
    bare_left = scale * dense(attention.W_O).double().mT
    down, inner = (dense(weight).double().mT for weight in (mlp.W_out, mlp.W_in))
    # An MLP without a gate has W_in in the place of W_gate.
    gate, up = (dense(mlp.W_gate).double().mT, inner) if layout.gated else (inner, None)
    down = scale * down
    out_bias, down_bias = (scale * _bias(part, len(down), gate) for part in (attention.o, mlp.out))
    value, value_bias = _projection(ln1, attention.v, attention.W_V)
    heads = int(model.cfg.n_heads)
    gate_bias = _bias(getattr(mlp, "in") if up is None else mlp.gate, len(gate), gate)
    up_bias = (
        torch.zeros_like(gate_bias) if up is None else _bias(getattr(mlp, "in"), len(up), gate)
    )
    return BlockWeights(
        left_factor=_after(post1, bare_left),
        right=_expanded(value, heads),
        down=_after(post2, down),
        gate=_before(ln2, gate),
        up=None if up is None else _before(ln2, up),
        bare_down=down,
        bare_gate=gate,
        bare_up=up,
        gain_1=_largest_gain(ln1, out_bias),
        gain_2=_largest_gain(ln2, out_bias),
        value_bias=_expanded(value_bias, heads),
        out_bias=_after(post1, out_bias[:, None])[:, 0],
        gate_bias=gate_bias + _of_norm_bias(ln2, gate),
        up_bias=up_bias if up is None else up_bias + _of_norm_bias(ln2, up),
        down_bias=_after(post2, down_bias[:, None])[:, 0],
    )


def _largest_gain(norm: Norm | None, like: Tensor) -> Float[Tensor, ""]:
    """||g||_inf, 1 of no norm."""
    return like.new_ones(()) if norm is None else norm.gain.to(like).abs().max()


def _projection(
    norm: Norm | None, linear: Any, weight: Float[Tensor, "kv_head d_model d_head"]
) -> tuple[Float[Tensor, "kv_head d_head d_model"], Float[Tensor, "kv_head d_head"]]:
    """A head's W diag(g) C and its bias, what the norm's own bias adds included."""
    bare = dense(weight).double().mT
    bias = _bias(linear, bare.shape[0] * bare.shape[1], bare).reshape(bare.shape[:2])
    return _before(norm, bare), bias + _of_norm_bias(norm, bare)


def _bias(linear: Any, width: int, like: Tensor) -> Float[Tensor, " width"]:
    """A linear map's bias, in the dtype of `like`; zeros where it has none."""
    bias = getattr(linear, "bias", None)
    return (
        torch.zeros(width, dtype=like.dtype, device=like.device)
        if bias is None
        else bias.detach().to(like)
    )


def _of_norm_bias(
    norm: Norm | None, weight: Float[Tensor, "*out d_model"]
) -> Float[Tensor, "*out"]:
    """Bias that the norm before a weight adds to its output: 0 for an RMS norm."""
    return (
        torch.zeros_like(weight[..., 0])
        if norm is None or norm.bias is None
        else weight @ norm.bias.to(weight)
    )


def final_gain(model: TransformerBridge) -> Float[Tensor, " d_model"]:
    """g3, the gain of the final norm."""
    return hooks.norms(model)["ln_final"].gain.double()


def final_norm(model: TransformerBridge) -> Float[Tensor, "d_model d_model"]:
    """diag(g3), diag(g3) (I - 11^T / d) for a LayerNorm: the final norm without its scale."""
    norm = hooks.norms(model)["ln_final"]
    return norm.centre(torch.diag(norm.gain.double()))


def _expanded(per_key_value_head: Tensor, heads: int) -> Tensor:
    """One tensor a query head, [head, ...], from one a key/value head."""
    return per_key_value_head.repeat_interleave(heads // per_key_value_head.shape[0], dim=0)


def _before(
    norm: Norm | None, weight: Float[Tensor, "*head out d_model"]
) -> Float[Tensor, "*head out d_model"]:
    """weight diag(g) C: the norm that the operator reads through, its scale left out."""
    if norm is None:
        return weight
    scaled = weight * norm.gain.to(weight)
    return scaled - scaled.mean(-1, keepdim=True) if norm.centred else scaled


def _after(
    norm: Norm | None, weight: Float[Tensor, "*head d_model inner"]
) -> Float[Tensor, "*head d_model inner"]:
    """diag(gp) weight: the post-norm that the operator's output goes through, where there is one."""
    return weight if norm is None else norm.gain.to(weight)[:, None] * weight
