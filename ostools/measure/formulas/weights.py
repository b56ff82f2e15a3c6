"""The weights of a model as the theorem's operators, with every gain folded in.

    attention of head h:  B_h = diag(gp1) W_O^h W_V^h diag(g1) = left_h right_h        (rank d_head)
    MLP:                  D_j = (1 / (rp2_j r2_j)) down (diag(p_j) gate + diag(q_j) up)
    final norm:           diag(g3) / r3_n

gp1, gp2 are the gains of the norms after attention and MLP (Gemma 2, 3, OLMo 2), 1 where there are none; so are g1, g2 without
a norm before (OLMo 2). In a parallel block with one norm (Phi) g2 is g1. A LayerNorm also takes the mean off, which is folded
in as a projection. Grouped heads are expanded: query head h reads h // (H / n_kv).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

import hooks
from hooks import Norm
from ostools.measure.formulas.layout import Layout
from ostools.models.lazy_cast import dense


@dataclass(frozen=True)
class BlockWeights:
    """One block's operators. `up` is None where the MLP has no gate; `bare_*` lack the norms' gains.

    `query` and `key` give the queries and keys before qk-norm and rotation.

    Biases (zero where there are none) move no derivative; they are here so that the operators can be checked against what
    the model computes: `value_bias` of a head's value, `gate_bias` and `up_bias` of what the MLP reads, with the norm's own
    bias in them; `out_bias` and `down_bias` of what is added, with the post-norm's gain.
    """

    left_factor: Float[Tensor, "head d_model d_head"]
    right: Float[Tensor, "head d_head d_model"]
    query: Float[Tensor, "head d_head d_model"]
    key: Float[Tensor, "kv_head d_head d_model"]
    down: Float[Tensor, "d_model d_mlp"]
    gate: Float[Tensor, "d_mlp d_model"]
    up: Float[Tensor, "d_mlp d_model"] | None
    bare_left: Float[Tensor, "head d_model d_head"]
    bare_down: Float[Tensor, "d_model d_mlp"]
    bare_gate: Float[Tensor, "d_mlp d_model"]
    bare_up: Float[Tensor, "d_mlp d_model"] | None
    gain_1: Float[Tensor, ""]
    gain_2: Float[Tensor, ""]
    query_bias: Float[Tensor, "head d_head"]
    key_bias: Float[Tensor, "kv_head d_head"]
    value_bias: Float[Tensor, "head d_head"]
    out_bias: Float[Tensor, " d_model"]
    gate_bias: Float[Tensor, " d_mlp"]
    up_bias: Float[Tensor, " d_mlp"]
    down_bias: Float[Tensor, " d_model"]


def block_weights(
    model: TransformerBridge, layer: int, layout: Layout, dtype: torch.dtype = torch.float64
) -> BlockWeights:
    """Read one block of the model; `gain_1`, `gain_2` are ||g1||_inf and ||g2||_inf (0 there makes beta infinite)."""
    ln1, ln2, post1, post2 = (layout.before_attention, layout.before_mlp, layout.after_attention, layout.after_mlp)
    attention, mlp = model.blocks[layer].attn, model.blocks[layer].mlp
    bare_left = dense(attention.W_O).to(dtype).mT
    down, gate, up = _mlp_weights(model, layer, layout.gated, dtype)
    out_bias, down_bias = _bias(attention.o, len(down), gate), _bias(mlp.out, len(down), gate)
    query, query_bias = _projection(ln1, attention.q, attention.W_Q, dtype)
    key, key_bias = _projection(ln1, attention.k, attention.W_K, dtype)
    value, value_bias = _projection(ln1, attention.v, attention.W_V, dtype)
    heads = int(model.cfg.n_heads)
    gate_bias = _bias(getattr(mlp, "in") if up is None else mlp.gate, len(gate), gate)
    up_bias = torch.zeros_like(gate_bias) if up is None else _bias(getattr(mlp, "in"), len(up), gate)
    return BlockWeights(
        left_factor=_after(post1, bare_left),
        right=_expanded(value, heads),
        query=query,
        key=key,
        down=_after(post2, down),
        gate=_before(ln2, gate),
        up=None if up is None else _before(ln2, up),
        bare_left=bare_left,
        bare_down=down,
        bare_gate=gate,
        bare_up=up,
        gain_1=_largest_gain(ln1, out_bias),
        gain_2=_largest_gain(ln2, out_bias),
        query_bias=query_bias,
        key_bias=key_bias,
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
    norm: Norm | None, linear: Any, weight: Float[Tensor, "kv_head d_model d_head"], dtype: torch.dtype
) -> tuple[Float[Tensor, "kv_head d_head d_model"], Float[Tensor, "kv_head d_head"]]:
    """A head's W diag(g) C and its bias, what the norm's own bias adds included."""
    bare = dense(weight).to(dtype).mT
    bias = _bias(linear, bare.shape[0] * bare.shape[1], bare).reshape(bare.shape[:2])
    return _before(norm, bare), bias + _of_norm_bias(norm, bare)


def _bias(linear: Any, width: int, like: Tensor) -> Float[Tensor, " width"]:
    """A linear map's bias, in the dtype of `like`; zeros where it has none."""
    bias = getattr(linear, "bias", None)
    return torch.zeros(width, dtype=like.dtype, device=like.device) if bias is None else bias.detach().to(like)


def _of_norm_bias(norm: Norm | None, weight: Float[Tensor, "*out d_model"]) -> Float[Tensor, "*out"]:
    """Bias that the norm before a weight adds to its output: 0 for an RMS norm."""
    return torch.zeros_like(weight[..., 0]) if norm is None or norm.bias is None else weight @ norm.bias.to(weight)


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


def _mlp_weights(
    model: TransformerBridge, layer: int, gated: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor | None]:
    """W_down, W_gate, W_up as [out, in]; an MLP without a gate has W_in in the place of W_gate."""
    mlp = model.blocks[layer].mlp
    down, inner = (dense(weight).to(dtype).mT for weight in (mlp.W_out, mlp.W_in))
    if gated:
        return down, dense(mlp.W_gate).to(dtype).mT, inner
    return down, inner, None


def _before(norm: Norm | None, weight: Float[Tensor, "*head out d_model"]) -> Float[Tensor, "*head out d_model"]:
    """weight diag(g) C: the norm that the operator reads through, its scale left out."""
    if norm is None:
        return weight
    scaled = weight * norm.gain.to(weight)
    return scaled - scaled.mean(-1, keepdim=True) if norm.centred else scaled


def _after(norm: Norm | None, weight: Float[Tensor, "*head d_model inner"]) -> Float[Tensor, "*head d_model inner"]:
    """diag(gp) weight: the post-norm that the operator's output goes through, where there is one."""
    return weight if norm is None else norm.gain.to(weight)[:, None] * weight
