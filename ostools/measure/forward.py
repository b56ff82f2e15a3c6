"""One forward pass, read as the theorem reads it: patterns, norm scales and the MLP's local slopes of every block.

The formulas are only as good as their reading of the model, so every block is checked on the spot: the folded weights,
applied to the captured residual stream, must give the attention and MLP outputs that the model itself computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

import hooks
from ostools.errors import InputError
from ostools.measure.weights import BlockWeights, block_weights

# What the formulas know: they enter through the pattern alone. Freezing changes no value.
KNOWN_EDITS = frozenset(
    {"mask_scores", "scale_scores", "replace_pattern", "ablate_edges", "freeze", "exact-arithmetic"}
)
_SITES = ("residual_pre", "residual_mid", "pattern", "norm1_scale", "norm2_scale", "attention_output", "mlp_output")
_MLP_SITES = ("mlp_gate", "mlp_up", "mlp_hidden")
_POST_SITES = ("post_norm1_scale", "post_norm2_scale")
_ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4}


@dataclass(frozen=True)
class Block:
    """One block at one prompt, float64: i = query, j = key.

    `p`, `q`: the gated MLP's slopes act'(a) u and act(a) (`q` None without a gate); scales r1, r2 and, for the norms after
    attention and MLP, rp1, rp2 (1 where there are none).
    """

    weights: BlockWeights
    pattern: Float[Tensor, "head query key"]
    norm1_scale: Float[Tensor, " pos"]
    norm2_scale: Float[Tensor, " pos"]
    post_norm1_scale: Float[Tensor, " pos"]
    post_norm2_scale: Float[Tensor, " pos"]
    p: Float[Tensor, "pos d_mlp"]
    q: Float[Tensor, "pos d_mlp"] | None


@dataclass(frozen=True)
class Forward:
    """A forward pass over one prompt; blocks are built one at a time, from the last to the first."""

    model: TransformerBridge
    record: dict[str, Any]
    final_norm_scale: Float[Tensor, " pos"]

    def blocks(self) -> Iterator[Block]:
        """Each block with its weights, last first, checked against what the model computed."""
        for layer in reversed(range(int(self.model.cfg.n_layers))):
            block = _block(self.model, self.record, layer)
            _check_attention(block, self.record, layer)
            _check_mlp(block, self.record, layer)
            yield block


def forward(model: TransformerBridge, ids: Int[Tensor, " pos"]) -> Forward:
    """Run the prompt once and keep what the formulas need: O(layers x heads x n^2) numbers, the patterns.

    Raises `InputError` under an active edit that the formulas do not know (an ablated head, a hook of somebody else), and
    for numbers that are not finite.
    """
    unknown = [edit for edit in hooks.active_edits(model) if edit.kind not in KNOWN_EDITS]
    if unknown:
        raise InputError(
            f"path_sum does not know the active edit {unknown[0].kind!r} at {unknown[0].where}: its formulas would describe "
            f"another network; leave the edit's block, or use sensitivity(), which measures whatever runs"
        )
    available = hooks.available_sites(model)
    names = [name for name in (*_SITES, *_MLP_SITES, *_POST_SITES) if name in available]
    with torch.no_grad(), hooks.capture(model, *names, "final_norm_scale", reduce=_first) as record:
        logits = model(ids[None].to(next(model.parameters()).device))
    kept = [tensor for name in record for tensor in _by_layer(record[name])]
    if not all(bool(torch.isfinite(tensor).all()) for tensor in (logits, *kept)):
        raise InputError("the forward pass on this prompt is not finite; the model's weights or its dtype are broken")
    return Forward(model, dict(record), record["final_norm_scale"][:, 0].double())


def _by_layer(kept: Any) -> list[Tensor]:
    return list(kept.values()) if isinstance(kept, dict) else [kept]


def _first(tensor: Tensor, layer: int | None) -> Tensor:
    """The only prompt of the batch."""
    return tensor[0]


def _block(model: TransformerBridge, record: dict[str, Any], layer: int) -> Block:
    weights = block_weights(model, layer)
    norm1 = record["norm1_scale"][layer][:, 0].double()
    post1, post2 = (
        record[name][layer][:, 0].double() if name in record else torch.ones_like(norm1) for name in _POST_SITES
    )
    p, q = _slopes(model, record, layer)
    return Block(
        weights=weights,
        pattern=record["pattern"][layer].double(),
        norm1_scale=norm1,
        norm2_scale=record["norm2_scale"][layer][:, 0].double(),
        post_norm1_scale=post1,
        post_norm2_scale=post2,
        p=p,
        q=q,
    )


def _slopes(model: TransformerBridge, record: dict[str, Any], layer: int) -> tuple[Tensor, Tensor | None]:
    """p = act'(a) u and q = act(a) of the gated MLP; p = act'(a) alone without a gate."""
    original: Any = model.blocks[layer].mlp.original_component
    activation = getattr(original, "act_fn", None) or original.act
    a = record["mlp_gate"][layer].double().clone().requires_grad_(True)
    with torch.enable_grad():
        value = activation(a)
        (slope,) = torch.autograd.grad(value.sum(), a)
    value = value.detach()
    if "mlp_up" not in record:
        _require_close(value, record["mlp_hidden"][layer], layer, "act(a) of the MLP")
        return slope, None
    u = record["mlp_up"][layer].double()
    _require_close(value * u, record["mlp_hidden"][layer], layer, "act(a) * u of the MLP")
    return slope * u, value


def _check_attention(block: Block, record: dict[str, Any], layer: int) -> None:
    """The folded weights and the biases must reproduce what attention added."""
    weights = block.weights
    x = record["residual_pre"][layer].double() / block.norm1_scale[:, None]
    values = torch.einsum("hed,kd->hke", weights.right, x) + weights.value_bias[:, None]
    moved = torch.einsum("hqk,hke,hde->qd", block.pattern, values, weights.left) + weights.out_bias
    _require_close(moved / block.post_norm1_scale[:, None], record["attention_output"][layer], layer, "attention")


def _check_mlp(block: Block, record: dict[str, Any], layer: int) -> None:
    """The same for the MLP: what it reads (a, u) and what it adds, from the captured residual stream."""
    weights = block.weights
    x = record["residual_mid"][layer].double() / block.norm2_scale[:, None]
    _require_close(x @ weights.gate.T + weights.gate_bias, record["mlp_gate"][layer], layer, "W_gate of the MLP")
    if weights.up is not None:
        _require_close(x @ weights.up.T + weights.up_bias, record["mlp_up"][layer], layer, "W_up of the MLP")
    added = record["mlp_hidden"][layer].double() @ weights.down.T + weights.down_bias
    _require_close(added / block.post_norm2_scale[:, None], record["mlp_output"][layer], layer, "W_down of the MLP")


def _require_close(found: Tensor, computed: Tensor, layer: int, what: str) -> None:
    """`computed` is the model's own, in its dtype, which sets the rounding to be expected."""
    size = float(computed.abs().max())
    error = float((found - computed).abs().max())
    if not error <= _ROUNDING[computed.dtype] * size:
        raise InputError(
            f"block {layer}: {what}, computed from the weights as read here, differs from the model's own by {error:.2g} "
            f"(values up to {size:.2g}); the formulas do not describe this model"
        )
