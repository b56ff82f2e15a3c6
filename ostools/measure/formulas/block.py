"""Block at one prompt: the terms of its formulas, each computed when it is first asked for."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ostools.ground.errors import InputError
from ostools.ground.lens import TransformerBridge
from ostools.hooks import Norm
from ostools.measure.formulas.weights import BlockWeights, activation, block_weights, layout

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

_ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4}
"""What numbers from the weights may be off the model's own, of the largest; by the dtype of the
model's own.
"""


class AppliedNorm(NamedTuple):
    """A norm at every position: its scale r(x) and its direction u = (x - c(x)) / (sqrt(d) r(x)),
    so that N(x) = I - u u^T.

    Where there is no such norm they are 1 and 0.
    """

    norm: Norm | None
    scale: Float[Tensor, " pos"]
    direction: Float[Tensor, "pos d_model"]


class Block:
    """One block in float64: i = query, j = key.

    `norm1`, `norm2` have the scales r1, r2, and the norms after attention and MLP, `post_norm1` and
    `post_norm2`, rp1 and rp2. Whether attention and MLP are parallel is in `layout`. `sites`: what
    the pass gave, by their names; `norms` and `available` sites are the model's.
    """

    def __init__(
        self,
        model: TransformerBridge,
        layer: int,
        sites: Mapping[str, Tensor],
        norms: Mapping[str, Norm],
        available: Container[str],
    ) -> None:
        self.layer, self.model, self._sites, self._norms = layer, model, sites, norms
        self.layout = layout(layer, norms, available)

    @property
    def _mlp_input(self) -> str:
        return "residual_pre" if self.layout.parallel else "residual_mid"

    @cached_property
    def weights(self) -> BlockWeights:
        return block_weights(self.model, self.layer, self.layout)

    @property
    def raw_pattern(self) -> Float[Tensor, "head query key"]:
        """The pattern in the model's own dtype: no copy."""
        return self._sites["pattern"]

    @cached_property
    def pattern(self) -> Float[Tensor, "head query key"]:
        return self.raw_pattern.double()

    @property
    def residual(self) -> Float[Tensor, "pos d_model"]:
        """v_i^(l): what enters the block."""
        return self._site("residual_pre")

    @cached_property
    def norm1(self) -> AppliedNorm:
        return self._applied(self.layout.before_attention, "norm1_scale", "residual_pre")

    @cached_property
    def norm2(self) -> AppliedNorm:
        return (
            self.norm1
            if self.layout.shared
            else self._applied(self.layout.before_mlp, "norm2_scale", self._mlp_input)
        )

    @cached_property
    def post_norm1(self) -> AppliedNorm:
        return self._applied(self.layout.after_attention, "post_norm1_scale", "attention_raw")

    @cached_property
    def post_norm2(self) -> AppliedNorm:
        return self._applied(self.layout.after_mlp, "post_norm2_scale", "mlp_raw")

    @cached_property
    def value(self) -> Float[Tensor, "head pos d_head"]:
        """Values as heads read them, one a query head."""
        weights = self.weights
        return (
            torch.einsum("hed,kd->hke", weights.right, self._normalised)
            + weights.value_bias[:, None]
        )

    @property
    def p(self) -> Float[Tensor, "pos d_mlp"]:
        """act'(a) u of a gated MLP; act'(a) without a gate."""
        return self._slopes[0]

    @property
    def q(self) -> Float[Tensor, "pos d_mlp"] | None:
        """act(a) of a gated MLP; None without a gate."""
        return self._slopes[1]

    @cached_property
    def _slopes(self) -> tuple[Tensor, Tensor | None]:
        original: Any = self.model.blocks[self.layer].mlp.original_component
        a = self._site("mlp_gate").clone().requires_grad_(True)
        with torch.enable_grad():
            value = activation(original)(a)
            (slope,) = torch.autograd.grad(value.sum(), a)
        value = value.detach()
        if "mlp_up" not in self._sites:
            require_close(value, self._sites["mlp_hidden"], self.layer, "act(a) of the MLP")
            return slope, None
        u = self._site("mlp_up")
        require_close(value * u, self._sites["mlp_hidden"], self.layer, "act(a) * u of the MLP")
        return slope * u, value

    @cached_property
    def _normalised(self) -> Float[Tensor, "pos d_model"]:
        """(v - c(v)) / r1(v): gains, centring of weights and biases are folded into the weights."""
        return self._without_gain(self.norm1, "residual_pre")

    def _without_gain(self, applied: AppliedNorm, site: str) -> Float[Tensor, "pos d_model"]:
        """Output of a norm before its gain; its input where there is no norm."""
        return (
            self._site(site)
            if applied.norm is None
            else applied.direction * applied.direction.shape[-1] ** 0.5
        )

    def check(self) -> None:
        """The folded weights and the biases must reproduce what attention and MLP read and added;
        else `InputError`.
        """
        weights, layer = self.weights, self.layer
        attention_output = sum(self._head_outputs(), weights.out_bias)
        require_close(
            attention_output / self.post_norm1.scale[:, None],
            self._sites["attention_output"],
            layer,
            "attention",
        )
        read = self._without_gain(self.norm2, self._mlp_input)
        require_close(
            read @ weights.gate.T + weights.gate_bias,
            self._sites["mlp_gate"],
            layer,
            "W_gate of the MLP",
        )
        if weights.up is not None:
            require_close(
                read @ weights.up.T + weights.up_bias,
                self._sites["mlp_up"],
                layer,
                "W_up of the MLP",
            )
        added = self._site("mlp_hidden") @ weights.down.T + weights.down_bias
        require_close(
            added / self.post_norm2.scale[:, None],
            self._sites["mlp_output"],
            layer,
            "W_down of the MLP",
        )
        residual = self._site("residual_pre") + self._site("attention_output")
        if not self.layout.parallel:
            require_close(residual, self._sites["residual_mid"], layer, "the sum behind attention")
        residual = residual + self._site("mlp_output")
        require_close(
            residual, self._sites["residual_post"], layer, "the sum of the residual stream"
        )

    def _head_outputs(self) -> Iterator[Float[Tensor, "query d_model"]]:
        """Output of each head in the residual stream; one pattern in float64 at a time."""
        for pattern, value, left_factor in zip(
            self.raw_pattern, self.value, self.weights.left_factor, strict=True
        ):
            yield pattern.double() @ value @ left_factor.T

    def _site(self, name: str) -> Tensor:
        return self._sites[name].double()

    def _applied(self, norm: Norm | None, scale_site: str, site: str) -> AppliedNorm:
        if norm is None:
            stream = self._site("residual_pre")
            return AppliedNorm(None, torch.ones_like(stream[:, 0]), torch.zeros_like(stream))
        scale, x = self._site(scale_site)[:, 0], norm.centre(self._site(site))
        return AppliedNorm(norm, scale, x / (scale[:, None] * x.shape[-1] ** 0.5))


def require_close(computed: Tensor, own: Tensor, layer: int, what: str) -> None:
    """Require that numbers computed from the weights are those that the model itself computed; else
    `InputError`.
    """
    error, size = float((computed - own).abs().max()), float(own.abs().max())
    if not error <= _ROUNDING[own.dtype] * size:
        raise InputError(
            f"block {layer}: {what}, computed from the weights as read here, differs from the model's own by {error:.2g} "
            f"(values up to {size:.2g}); the formulas do not describe this model"
        )
