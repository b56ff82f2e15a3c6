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
_SITES = ("residual_pre", "pattern", "norm1_scale", "norm2_scale", "attention_output", "mlp_output")
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
            _check_attention(self.model, block, self.record, layer)
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
    if not bool(torch.isfinite(logits).all()):
        raise InputError("the model's logits on this prompt are not finite; its weights or its dtype are broken")
    return Forward(model, dict(record), record["final_norm_scale"][:, 0].double())


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
    a = record["mlp_gate"][layer].double().requires_grad_(True)
    with torch.enable_grad():
        value = activation(a)
        (slope,) = torch.autograd.grad(value.sum(), a)
    value = value.detach()
    if "mlp_up" not in record:
        _require_close(value, record["mlp_hidden"][layer], f"block {layer}: act(a) of the MLP")
        return slope, None
    u = record["mlp_up"][layer].double()
    _require_close(value * u, record["mlp_hidden"][layer], f"block {layer}: act(a) * u of the MLP")
    return slope * u, value


def _check_attention(model: TransformerBridge, block: Block, record: dict[str, Any], layer: int) -> None:
    """The folded weights must reproduce what attention added, up to the same vector at every position where it has biases."""
    weights = block.weights
    x = record["residual_pre"][layer].double() / block.norm1_scale[:, None]
    moved = torch.einsum("hqk,hek,hde->qd", block.pattern, weights.right @ x.T, weights.left)
    moved = moved / block.post_norm1_scale[:, None]
    added = record["attention_output"][layer]
    if _has_biases(model, layer):
        if float((block.pattern.sum(-1) - 1.0).abs().max()) > 1e-3:
            return  # an edited pattern whose rows do not sum to 1 weights the value biases unevenly
        moved = moved + (added.double() - moved).mean(0)
    _require_close(moved, added, f"block {layer}: attention by the folded weights")


def _has_biases(model: TransformerBridge, layer: int) -> bool:
    block = model.blocks[layer]
    return any("bias" in name for part in (block.ln1, block.attn) for name, _ in part.named_parameters())


def _require_close(found: Tensor, computed: Tensor, what: str) -> None:
    """`computed` is the model's own, in its dtype, which sets the rounding to be expected."""
    size = float(computed.abs().max())
    error = float((found - computed).abs().max())
    if not error <= _ROUNDING[computed.dtype] * size:
        raise InputError(
            f"{what} differs from the model's own by {error:.2g} (values up to {size:.2g}); "
            f"the formulas do not describe this model"
        )
