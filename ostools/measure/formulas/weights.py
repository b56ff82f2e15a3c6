"""Norms of a block, read off its modules, and its weights as the theorem's operators, with every
gain folded in.

    sequential:  z = v + P1 attention(norm1(v)),   v' = z + P2 mlp(norm2(z))
    parallel:    v' = v + attention(norm1(v)) + mlp(norm2(v))
                 norm2 = norm1 where the block has one norm only (Phi, Falcon)

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

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ostools import hooks
from ostools.ground import InputError, MoEBridge, TransformerBridge
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
class BlockNorms:
    """The norms of a block, None where it has none there. `shared`: of a parallel block the MLP
    reads the same norm as attention.
    """

    before_attention: Norm | None
    before_mlp: Norm | None
    after_attention: Norm | None
    after_mlp: Norm | None
    shared: bool

    @classmethod
    def of(cls, layer: int, norms: Mapping[str, Norm], parallel: bool) -> "BlockNorms":
        """The norms of one block out of those of the model."""
        ln1, ln2, post1, post2 = (
            norms.get(f"blocks.{layer}.{name}") for name in ("ln1", "ln2", "ln1_post", "ln2_post")
        )
        shared = parallel and ln2 is None
        return cls(ln1, ln1 if shared else ln2, post1, post2, shared)


def require_described(model: TransformerBridge, sites: Container[str]) -> None:
    """`InputError` where the blocks are of a kind that no formula here describes; `sites`: those
    that the model has.
    """
    missing = "a record of what is inside them"
    if not is_closed(model):
        mlp, attention = model.blocks[0].mlp, model.blocks[0].attn
        if isinstance(mlp, MoEBridge):
            raise InputError(
                f"the formulas do not describe {model.cfg.architecture}: expected one MLP a block, "
                "found experts, of which a router chooses by the token; measure with "
                "sensitivity(), which goes through autograd"
            )
        absent = [name for name in _NEEDED if name not in sites]
        absent += [name for name in ("W_Q", "W_K", "W_V", "W_O") if not hasattr(attention, name)]
        absent += [name for name in ("W_in", "W_out") if not hasattr(mlp, name)]
        missing = next(iter(absent), "")
    if missing:
        raise InputError(
            f"the formulas do not describe {model.cfg.architecture}: expected blocks with "
            f"{missing}, found none; measure with sensitivity(), which goes through autograd"
        )


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
    value_bias: Float[Tensor, "head d_head"]
    out_bias: Float[Tensor, " d_model"]
    gate_bias: Float[Tensor, " d_mlp"]
    up_bias: Float[Tensor, " d_mlp"] | None
    down_bias: Float[Tensor, " d_model"]
    activation: Callable[[Tensor], Tensor]


def block_weights(
    model: TransformerBridge, layer: int, norms: BlockNorms, *, gated: bool
) -> BlockWeights:
    """Read one block of the model."""
    ln1, ln2 = norms.before_attention, norms.before_mlp
    attention, mlp = model.blocks[layer].attn, model.blocks[layer].mlp
    activation = hooks.activation_of(mlp.original_component)
    if activation is None:
        raise InputError(
            f"the formulas do not describe {type(mlp.original_component).__name__}: expected an "
            "activation, found none"
        )
    scale, heads = hooks.residual_scale(model), int(model.cfg.n_heads)
    value, down, inner = (
        dense(weight).double().mT for weight in (attention.W_V, mlp.W_out, mlp.W_in)
    )
    down = scale * down
    # An MLP without a gate has W_in in the place of W_gate.
    gate, up = (dense(mlp.W_gate).double().mT, inner) if gated else (inner, None)
    read_in = getattr(mlp, "in")
    out_bias, down_bias = (scale * _bias(part, down) for part in (attention.o, mlp.out))
    return BlockWeights(
        left_factor=_after(norms.after_attention, scale * dense(attention.W_O).double().mT),
        right=_expanded(_before(ln1, value), heads),
        down=_after(norms.after_mlp, down),
        gate=_before(ln2, gate),
        up=None if up is None else _before(ln2, up),
        bare_down=down,
        bare_gate=gate,
        bare_up=up,
        value_bias=_expanded(_read_bias(ln1, attention.v, value), heads),
        out_bias=_after(norms.after_attention, out_bias[:, None])[:, 0],
        gate_bias=_read_bias(ln2, mlp.gate if gated else read_in, gate),
        up_bias=None if up is None else _read_bias(ln2, read_in, up),
        down_bias=_after(norms.after_mlp, down_bias[:, None])[:, 0],
        activation=activation,
    )


def _expanded(per_key_value_head: Tensor, heads: int) -> Tensor:
    """One tensor a query head, [head, ...], from one a key/value head."""
    return per_key_value_head.repeat_interleave(heads // len(per_key_value_head), dim=0)


def largest_gain(norm: Norm | None) -> float:
    """||g||_inf, 1 of no norm; 0 makes beta infinite."""
    return 1.0 if norm is None else float(norm.gain.abs().max())


def _bias(linear: Any, weight: Float[Tensor, "*out d_in"]) -> Float[Tensor, "*out"]:
    """A linear map's bias; zeros where it has none."""
    bias = getattr(linear, "bias", None)
    zeros = torch.zeros_like(weight[..., 0])
    return zeros if bias is None else bias.detach().to(weight).reshape(zeros.shape)


def _read_bias(
    norm: Norm | None, linear: Any, weight: Float[Tensor, "*out d_model"]
) -> Float[Tensor, "*out"]:
    """A linear map's bias, with what the bias of the norm before it adds."""
    bias = _bias(linear, weight)
    return bias if norm is None or norm.bias is None else bias + weight @ norm.bias.to(weight)


def final_gain(model: TransformerBridge) -> Float[Tensor, " d_model"]:
    """g3, the gain of the final norm."""
    return hooks.norms(model)["ln_final"].gain.double()


def final_norm(model: TransformerBridge) -> Float[Tensor, "d_model d_model"]:
    """diag(g3), diag(g3) (I - 11^T / d) for a LayerNorm: the final norm without its scale."""
    norm = hooks.norms(model)["ln_final"]
    return norm.centre(torch.diag(norm.gain.double()))


def _before(
    norm: Norm | None, weight: Float[Tensor, "*head out d_model"]
) -> Float[Tensor, "*head out d_model"]:
    """weight diag(g) C: the norm that the operator reads through, its scale left out."""
    return weight if norm is None else norm.centre(weight * norm.gain.to(weight))


def _after(
    norm: Norm | None, weight: Float[Tensor, "*head d_model inner"]
) -> Float[Tensor, "*head d_model inner"]:
    """diag(gp) weight: the post-norm behind the operator, where there is one."""
    return weight if norm is None else norm.gain.to(weight)[:, None] * weight
