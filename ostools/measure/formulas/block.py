"""One block at one prompt: what its formulas are made of, each part computed when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from hooks import Norm
from ostools.measure.formulas.scores import Scores, read_scores, require_close
from ostools.measure.formulas.weights import BlockWeights, block_weights

SITES = (
    "residual_pre",
    "residual_mid",
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

LIVE_SITES = ("scores", "rotary_q", "rotary_k", "rotary_cos", "rotary_sin")
"""What the real derivative needs beside that."""


class Block:
    """One block, in one dtype (float64 for the formulas): i = query, j = key.

    Scales r1, r2 and, for the norms after attention and MLP, rp1, rp2 (1 where there are none). A norm's `direction` is
    u = (x - c(x)) / (sqrt(d) r(x)), so that its N(x) = I - u u^T; 0 where there is no such norm. `read` gives captured
    sites by their names; `norms` are the model's; `scaled`: a temperature edit is active.
    """

    def __init__(
        self,
        model: TransformerBridge,
        layer: int,
        read: Callable[[Sequence[str]], dict[str, Tensor]],
        norms: Mapping[str, Norm],
        dtype: torch.dtype,
        scaled: bool,
    ) -> None:
        self.layer = layer
        self._model, self._read, self._norms, self._dtype, self._scaled = model, read, norms, dtype, scaled

    @cached_property
    def _sites(self) -> dict[str, Tensor]:
        return self._read(SITES)

    @cached_property
    def weights(self) -> BlockWeights:
        return block_weights(self._model, self.layer, self._norms, self._dtype)

    @property
    def raw_pattern(self) -> Float[Tensor, "head query key"]:
        """The pattern in the model's own dtype: no copy."""
        return self._sites["pattern"]

    @cached_property
    def pattern(self) -> Float[Tensor, "head query key"]:
        return self.raw_pattern.to(self._dtype)

    @cached_property
    def norm1_scale(self) -> Float[Tensor, " pos"]:
        return self._scale("norm1_scale")

    @cached_property
    def norm2_scale(self) -> Float[Tensor, " pos"]:
        return self._scale("norm2_scale")

    @cached_property
    def post_norm1_scale(self) -> Float[Tensor, " pos"]:
        return self._scale("post_norm1_scale")

    @cached_property
    def post_norm2_scale(self) -> Float[Tensor, " pos"]:
        return self._scale("post_norm2_scale")

    @cached_property
    def norm1_direction(self) -> Float[Tensor, "pos d_model"]:
        return self._direction("ln1", "residual_pre", self.norm1_scale)

    @cached_property
    def norm2_direction(self) -> Float[Tensor, "pos d_model"]:
        return self._direction("ln2", "residual_mid", self.norm2_scale)

    @cached_property
    def post_norm1_direction(self) -> Float[Tensor, "pos d_model"]:
        return self._direction("ln1_post", "attention_raw", self.post_norm1_scale)

    @cached_property
    def post_norm2_direction(self) -> Float[Tensor, "pos d_model"]:
        return self._direction("ln2_post", "mlp_raw", self.post_norm2_scale)

    @cached_property
    def value(self) -> Float[Tensor, "head pos d_head"]:
        """Values as heads read them, one a query head."""
        weights = self.weights
        return torch.einsum("hed,kd->hke", weights.right, self._normalised) + weights.value_bias[:, None]

    @cached_property
    def scores(self) -> Scores:
        """What the real derivative needs; raises `InputError` where the pattern is not the softmax of the scores."""
        weights, sites = self.weights, {"pattern": self.raw_pattern, **self._read(LIVE_SITES)}
        return read_scores(
            self._model, self.layer, self._norms, weights, sites, self._normalised, self.value, self._scaled
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
        original: Any = self._model.blocks[self.layer].mlp.original_component
        activation = getattr(original, "act_fn", None) or original.act
        a = self._site("mlp_gate").clone().requires_grad_(True)
        with torch.enable_grad():
            value = activation(a)
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
        return self.norm1_direction * self.norm1_direction.shape[-1] ** 0.5

    def check(self) -> None:
        """The folded weights and the biases must reproduce what attention and MLP read and added; else `InputError`."""
        weights, layer = self.weights, self.layer
        heads = zip(self.raw_pattern, self.value, weights.left, strict=True)
        moved = sum((pattern.to(value) @ value @ left.T for pattern, value, left in heads), weights.out_bias)
        require_close(moved / self.post_norm1_scale[:, None], self._sites["attention_output"], layer, "attention")
        x = self.norm2_direction * self.norm2_direction.shape[-1] ** 0.5
        require_close(x @ weights.gate.T + weights.gate_bias, self._sites["mlp_gate"], layer, "W_gate of the MLP")
        if weights.up is not None:
            require_close(x @ weights.up.T + weights.up_bias, self._sites["mlp_up"], layer, "W_up of the MLP")
        added = self._site("mlp_hidden") @ weights.down.T + weights.down_bias
        require_close(added / self.post_norm2_scale[:, None], self._sites["mlp_output"], layer, "W_down of the MLP")

    def _site(self, name: str) -> Tensor:
        return self._sites[name].to(self._dtype)

    def _scale(self, name: str) -> Float[Tensor, " pos"]:
        """r(x) at every position; 1 where the model has no such norm."""
        if name not in self._sites:
            return torch.ones_like(self.norm1_scale)
        return self._site(name)[:, 0]

    def _direction(self, norm: str, site: str, scale: Float[Tensor, " pos"]) -> Float[Tensor, "pos d_model"]:
        """u of one norm; 0 where the model has none."""
        known = self._norms.get(f"blocks.{self.layer}.{norm}")
        if known is None:
            return torch.zeros_like(self._site("residual_pre"))
        x = known.centre(self._site(site))
        return x / (scale[:, None] * x.shape[-1] ** 0.5)
