"""One forward pass, read as the theorem reads it: patterns, norm scales and the local slopes of
every block, each computed when it is first asked for.

The formulas are only as good as their reading of the model, so every block is checked on the spot:
the folded weights, applied to the captured residual stream, must give the attention and MLP outputs
that the model itself computed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ostools import hooks
from ostools.ground import InputError, TransformerBridge
from ostools.hooks import Norm
from ostools.measure.formulas.weights import (
    BlockNorms,
    BlockWeights,
    block_weights,
    largest_gain,
    require_described,
)
from ostools.measure.passes.contexts import (
    PATTERN_EDITS,
    BlockCall,
    noted_calls,
    require_no_edits,
    true_arithmetic,
)
from ostools.theory import path_sum

SITES = (
    "residual_pre",
    "residual_mid",
    "residual_post",
    "pattern",
    "norm1_scale",
    "norm2_scale",
    "post_norm1_scale",
    "post_norm2_scale",
    "attention_raw",
    "attention_output",
    "mlp_gate",
    "mlp_up",
    "mlp_hidden",
    "mlp_raw",
    "mlp_output",
)
"""What a block is read from; a model has those of them that its architecture has."""

# What numbers from the weights may be off the model's own, of the largest; by the dtype of the
# model's own. A float32 model sums d_mlp products, whose rounding reaches 1e-5 of the largest.
_ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4}


class BlockTerms:
    """One block in float64: i = query, j = key.

    `sites`: what the pass gave, by their names. `residual`: v_i^(l), what enters the block. r1, r2:
    the scales of the norms before attention and MLP; rp1, rp2: of those behind them; 1 where there
    is no such norm.
    """

    mlp_norm: Callable[..., Float[Tensor, " pos"]] = staticmethod(path_sum.mlp_norms)
    """How ||D_i|| is taken; `path_sum.mlp_norm_products` is cheaper and larger."""

    def __init__(
        self,
        model: TransformerBridge,
        layer: int,
        sites: Mapping[str, Tensor],
        norms: Mapping[str, Norm],
    ) -> None:
        self.layer, self.model, self._sites = layer, model, sites
        self.parallel = "residual_mid" not in sites
        self.norms = BlockNorms.of(layer, norms, self.parallel)
        self.residual: Float[Tensor, "pos d_model"] = self._site("residual_pre")
        r2_site = "norm1_scale" if self.norms.shared else "norm2_scale"
        self.r1 = self._scale(self.norms.before_attention, "norm1_scale")
        self.r2 = self._scale(self.norms.before_mlp, r2_site)
        self.rp1 = self._scale(self.norms.after_attention, "post_norm1_scale")
        self.rp2 = self._scale(self.norms.after_mlp, "post_norm2_scale")

    @cached_property
    def weights(self) -> BlockWeights:
        return block_weights(self.model, self.layer, self.norms, gated="mlp_up" in self._sites)

    @property
    def raw_pattern(self) -> Float[Tensor, "head query key"]:
        """The pattern in the model's own dtype: no copy."""
        return self._sites["pattern"]

    @cached_property
    def pattern(self) -> Float[Tensor, "head query key"]:
        return self.raw_pattern.double()

    @cached_property
    def value(self) -> Float[Tensor, "head pos d_head"]:
        """Values as heads read them, one a query head."""
        read = _without_gain(self.norms.before_attention, self.r1, self.residual)
        weights = self.weights
        return torch.einsum("hed,kd->hke", weights.right, read) + weights.value_bias[:, None]

    @cached_property
    def slopes(self) -> tuple[Float[Tensor, "pos d_mlp"], Float[Tensor, "pos d_mlp"] | None]:
        """(p, q): act'(a) u and act(a) of a gated MLP; act'(a) and None without a gate."""
        a = self._site("mlp_gate").clone().requires_grad_(True)
        with torch.enable_grad():
            value = self.weights.activation(a)
            (slope,) = torch.autograd.grad(value.sum(), a)
        value = value.detach()
        if "mlp_up" not in self._sites:
            self._require_close(value, "mlp_hidden", "act(a) of the MLP")
            return slope, None
        u = self._site("mlp_up")
        self._require_close(value * u, "mlp_hidden", "act(a) * u of the MLP")
        return slope * u, value

    def require_causal(self, variant: str) -> None:
        """`InputError` where a replaced pattern looks at later tokens: this variant cuts off what
        it takes for no path.
        """
        if any(bool(head.triu(1).any()) for head in self.raw_pattern):
            raise InputError(
                f"block {self.layer}: variant {variant!r} expects a causal pattern, the one "
                "that an edit put in place looks at later tokens; use 'windowed(1)' or 'local', "
                "or measure with sensitivity()"
            )

    @cached_property
    def mean_pattern(self) -> Float[Tensor, "query key"]:
        """The paper has one head; on a model with several its alpha is their mean."""
        heads = len(self.raw_pattern)
        return path_sum.weighted_pattern(self.raw_pattern, self.r1.new_full((heads,), 1.0 / heads))

    @cached_property
    def weighted(self) -> Float[Tensor, "query key"]:
        """sum_h omega_h alpha_ij^h."""
        omega = path_sum.head_norms(self.weights.left_factor, self.weights.right)
        return path_sum.weighted_pattern(self.raw_pattern, omega)

    @cached_property
    def mlp_norms(self) -> Float[Tensor, " pos"]:
        """||D_i||: the MLP with the norms before and after it."""
        maps = self.weights.down, self.weights.gate, self.weights.up
        return self.mlp_norm(*maps, *self.slopes) / (self.r2 * self.rp2)

    @property
    def rows(self) -> Float[Tensor, "pos d_model d_model"]:
        """I + D_i at every position."""
        maps = self.weights.down, self.weights.gate, self.weights.up
        scale = (self.r2 * self.rp2)[:, None, None]
        return path_sum.with_identity(path_sum.mlp_jacobian(*maps, *self.slopes) / scale)

    @cached_property
    def sigma_psi(self) -> float:
        """max over positions of ||J_psi||, at this input: a gated MLP has no global Lipschitz
        constant.
        """
        maps = self.weights.bare_down, self.weights.bare_gate, self.weights.bare_up
        return float(self.mlp_norm(*maps, *self.slopes).max())

    @property
    def beta_1(self) -> float:
        """min_j r1_j / ||g1||_inf."""
        return float(self.r1.min() / largest_gain(self.norms.before_attention))

    @property
    def beta_2(self) -> float:
        """min_j r2_j / ||g2||_inf."""
        return float(self.r2.min() / largest_gain(self.norms.before_mlp))

    def check(self) -> None:
        """The folded weights and the biases must reproduce what attention and MLP read and added;
        else `InputError`.
        """
        weights = self.weights
        heads = zip(self.raw_pattern, self.value, weights.left_factor, strict=True)
        # One pattern in float64 at a time.
        added_by_head = (pattern.double() @ value @ factor.T for pattern, value, factor in heads)
        attention = sum(added_by_head, weights.out_bias) / self.rp1[:, None]
        self._require_close(attention, "attention_output", "attention")
        mlp_input = self._site("residual_pre" if self.parallel else "residual_mid")
        read = _without_gain(self.norms.before_mlp, self.r2, mlp_input)
        gate = read @ weights.gate.T + weights.gate_bias
        self._require_close(gate, "mlp_gate", "W_gate of the MLP")
        if weights.up is not None and weights.up_bias is not None:
            up = read @ weights.up.T + weights.up_bias
            self._require_close(up, "mlp_up", "W_up of the MLP")
        added = self._site("mlp_hidden") @ weights.down.T + weights.down_bias
        self._require_close(added / self.rp2[:, None], "mlp_output", "W_down of the MLP")
        residual = self.residual + self._site("attention_output")
        if not self.parallel:
            self._require_close(residual, "residual_mid", "the sum behind attention")
        residual = residual + self._site("mlp_output")
        self._require_close(residual, "residual_post", "the sum of the residual stream")

    def _site(self, name: str) -> Tensor:
        return self._sites[name].double()

    def _scale(self, norm: Norm | None, site: str) -> Float[Tensor, " pos"]:
        return torch.ones_like(self.residual[:, 0]) if norm is None else self._site(site)[:, 0]

    def _require_close(self, computed: Tensor, site: str, what: str) -> None:
        """Require that numbers computed from the weights are those that the model itself computed;
        else `InputError`.
        """
        model_value = self._sites[site]
        error, size = float((computed - model_value).abs().max()), float(model_value.abs().max())
        if not error <= _ROUNDING[model_value.dtype] * size:
            raise InputError(
                f"block {self.layer}: {what}, computed from the weights as read here, differs from "
                f"the model's own by {error:.2g} (values up to {size:.2g}); the formulas do not "
                "describe this model"
            )


def _without_gain(
    norm: Norm | None, scale: Float[Tensor, " pos"], x: Float[Tensor, "pos d_model"]
) -> Float[Tensor, "pos d_model"]:
    """(x - c(x)) / r(x), the norm before its gain; x where there is no norm."""
    return x if norm is None else norm.centre(x) / scale[:, None]


@dataclass(frozen=True)
class Forward:
    """A forward pass over one prompt; blocks are read one at a time, from the last to the first.

    Each block runs again when its turn comes, so that never more than one block's patterns are in
    memory.
    """

    model: TransformerBridge
    norms: Mapping[str, hooks.Norm]
    names: Sequence[str]  # the sites that the model has: looked up once
    calls: list[BlockCall]
    final_norm_scale: Float[Tensor, " pos"]

    def blocks(self) -> Iterator[BlockTerms]:
        """Blocks, last first, each checked against what the model computed."""
        for layer in reversed(range(len(self.calls))):
            block = BlockTerms(self.model, layer, self._read(layer), self.norms)
            block.check()
            yield block
            del block

    def _read(self, layer: int) -> Mapping[str, Tensor]:
        args, kwargs = self.calls[layer]
        with (
            torch.no_grad(),
            true_arithmetic(self.model, [layer]),
            hooks.capture(self.model, *self.names, layers=[layer]) as record,
        ):
            self.model.blocks[layer](*args, **kwargs)
        return {name: record[name][layer][0] for name in self.names}


def forward(model: TransformerBridge, ids: Int[Tensor, " pos"]) -> Forward:
    """Run the prompt once, and note how each block was called.

    Raises `InputError` for blocks that no formula describes (experts), under an active edit that
    the formulas do not know (an ablated head, a hook of somebody else), and for numbers that are
    not finite.
    """
    reason = "formulas would describe another network (sensitivity() measures whatever runs)"
    require_no_edits("bounds", model, reason, but=PATTERN_EDITS)
    available = hooks.available_sites(model)
    require_described(model, available)
    names = [name for name in SITES if name in available]
    last = int(model.cfg.n_layers) - 1
    with (
        torch.no_grad(),
        true_arithmetic(model),
        noted_calls(model) as calls,
        hooks.capture(model, "final_norm_scale") as record,
        hooks.capture(model, "residual_post", layers=[last]) as at_end,
    ):
        logits = model(ids[None].to(next(model.parameters()).device), logits_to_keep=1)
    # What is not finite before reaches the last block's residual stream; each block's own check
    # sees the rest.
    if not all(bool(x.isfinite().all()) for x in (logits, at_end["residual_post"][last])):
        raise InputError(
            "the forward pass on this prompt is not finite; the model's weights or its dtype are "
            "broken"
        )
    scale = record["final_norm_scale"][0, :, 0].double()
    return Forward(model, hooks.norms(model), names, calls, scale)
