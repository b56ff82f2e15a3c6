"""Block at one prompt: the terms of its formulas, each computed when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

import hooks
from hooks import Norm, StripAttention
from ostools.ground.errors import InputError
from ostools.measure.formulas.heads import Heads, read_heads, require_close
from ostools.measure.formulas.scores import RemadeStrips, ScoresCheck, Strip, slopes, whole_strips
from ostools.measure.formulas.weights import BlockWeights, Layout, activation, layout

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

LIVE_SITES = ("scores", "rotary_q", "rotary_k", "rotary_cos", "rotary_sin")
"""What the real derivative needs beside that."""

IN_STRIPS = (*(name for name in SITES if name != "pattern"), "rotary_cos", "rotary_sin")
"""What a block is read from where attention runs in strips, beside the call of its attention."""


@dataclass(frozen=True)
class BlockSites:
    """Captured sites by their names, the attention's call where it ran in strips (`size` queries each), and ALiBi's `bias`."""

    sites: Mapping[str, Tensor]
    attention: StripAttention | None = None
    size: int | None = None
    bias: Float[Tensor, "head 1 key"] | None = None


class AppliedNorm(NamedTuple):
    """A norm at every position: its scale r(x) and its direction u = (x - c(x)) / (sqrt(d) r(x)), so that N(x) = I - u u^T.

    Where there is no such norm they are 1 and 0.
    """

    norm: Norm | None
    scale: Float[Tensor, " pos"]
    direction: Float[Tensor, "pos d_model"]


class Block:
    """One block, in one dtype (float64 for the formulas): i = query, j = key.

    `norm1`, `norm2` have the scales r1, r2, and the norms after attention and MLP, `post_norm1` and `post_norm2`, rp1 and rp2.
    Whether attention and MLP are parallel is in `layout`. `read` gives captured sites by their names, `weights` the operators
    of a layout; `norms` and `available` sites are the model's; `scaled`: a temperature edit is active.
    """

    def __init__(
        self,
        model: TransformerBridge,
        layer: int,
        read: Callable[[Sequence[str]], BlockSites],
        weights: Callable[[Layout], BlockWeights],
        norms: Mapping[str, Norm],
        available: Container[str],
        dtype: torch.dtype,
        scaled: bool,
    ) -> None:
        self.layer, self.model, self.dtype, self.scaled = layer, model, dtype, scaled
        self._read, self._norms, self._weights = read, norms, weights
        self.layout = layout(layer, norms, available)

    @cached_property
    def _first_read(self) -> BlockSites:
        return self._read(SITES)

    @property
    def _mlp_input(self) -> str:
        return "residual_pre" if self.layout.parallel else "residual_mid"

    @property
    def _sites(self) -> Mapping[str, Tensor]:
        return self._first_read.sites

    @property
    def attention(self) -> StripAttention | None:
        """Maker of any strip, where attention runs in strips (`hooks.in_strips`). There is no whole pattern then."""
        return self._first_read.attention

    @cached_property
    def weights(self) -> BlockWeights:
        return self._weights(self.layout)

    @property
    def raw_pattern(self) -> Float[Tensor, "head query key"]:
        """The pattern in the model's own dtype: no copy. Raises `InputError` where attention runs in strips."""
        if self.attention is not None:
            raise InputError(
                f"block {self.layer}: attention runs in strips, so that its pattern never exists as a whole: leave the block "
                f"of hooks.in_strips(), or shorten the prompt"
            )
        return self._sites["pattern"]

    @cached_property
    def pattern(self) -> Float[Tensor, "head query key"]:
        return self.raw_pattern.to(self.dtype)

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
            self.norm1 if self.layout.shared else self._applied(self.layout.before_mlp, "norm2_scale", self._mlp_input)
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
        return torch.einsum("hed,kd->hke", weights.right, self._normalised) + weights.value_bias[:, None]

    @cached_property
    def mean_value(self) -> Float[Tensor, "head query d_head"]:
        """vbar_i = sum_j alpha_ij value_j of every head."""
        if self.attention is None:
            return self.pattern @ self.value
        strips = self.strips(slice(0, self.value.shape[1]), live=False)
        return torch.cat([strip.pattern @ self.value[:, strip.keys] for strip in strips], dim=1)

    def strips(self, rows: slice, live: bool) -> Iterable[Strip]:
        """The pattern of the queries `rows` in strips, counted from the first of them; `live`: with the scores' answer."""
        if self.attention is not None:
            return self._remade(rows, live)
        return whole_strips(self.pattern[:, rows], self.slope[:, rows] if live else None)

    def _remade(self, rows: slice, live: bool) -> RemadeStrips:
        read = self._first_read
        assert read.attention is not None
        assert read.size is not None
        # Of the block the strips keep only this, so that its sites can go.
        model, layer, scaled, heads = self.model, self.layer, self.scaled, self.heads if live else None

        def slopes_of(queries: slice, scores: Tensor, check: ScoresCheck | None) -> Tensor:
            assert heads is not None
            query, key = heads.query[:, queries], heads.key[:, : scores.shape[-1]]
            return slopes(model, layer, query, key, scores, scaled, check)

        return RemadeStrips(read.attention, rows, read.size, self.dtype, slopes_of if live else None)

    @cached_property
    def heads(self) -> Heads:
        """Queries, keys and values, checked; raises `InputError` where weights or rotation do not give the model's own."""
        computed = {**self._live, **self._rotated}
        return read_heads(self.layer, self._norms, self.weights, computed, self._normalised, self.value)

    @cached_property
    def slope(self) -> Float[Tensor, "head query key"]:
        """d score_ij / d (q_i . k_j), with scores and pattern checked against the model's own.

        Raises `InputError` where the pattern is not the softmax of the scores (a replaced pattern, ablated edges).
        """
        check, scores, heads = ScoresCheck(self.layer), self._live["scores"], self.heads
        bias = self._first_read.bias
        slope = slopes(self.model, self.layer, heads.query, heads.key, scores, self.scaled, check, bias)
        check.see_pattern(scores, self.raw_pattern, self.dtype)
        check.require()
        return slope

    @cached_property
    def _live(self) -> Mapping[str, Tensor]:
        return self._sites if self.attention is not None else self._read(LIVE_SITES).sites

    @property
    def _rotated(self) -> Mapping[str, Float[Tensor, "pos some_head d_head"]]:
        """The queries and keys of the attention's call, where it ran in strips."""
        if self.attention is None:
            return {}
        group = self.attention.query.shape[1] // len(self.weights.key)
        query, key = self.attention.query[0].transpose(0, 1), self.attention.key[0, ::group].transpose(0, 1)
        return {"rotary_q": query, "rotary_k": key}

    @property
    def p(self) -> Float[Tensor, "pos d_mlp"]:
        """act'(a) u of a gated MLP; act'(a) without a gate."""
        return self._slopes[0]

    @property
    def q(self) -> Float[Tensor, "pos d_mlp"] | None:
        """act(a) of a gated MLP; None without a gate."""
        return self._slopes[1]

    @cached_property
    def held_slopes(self) -> tuple[Tensor | None, Tensor | None]:
        """Slopes (p, q) with the activation held: (None, act(a)) of a gated MLP; (act(a) / a, None) without a gate."""
        if self.q is not None:
            return None, self.q
        original: Any = self.model.blocks[self.layer].mlp.original_component
        return hooks.activation_ratio(activation(original), self._site("mlp_gate")), None

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
        return self._site(site) if applied.norm is None else applied.direction * applied.direction.shape[-1] ** 0.5

    def check(self) -> None:
        """The folded weights and the biases must reproduce what attention and MLP read and added; else `InputError`."""
        weights, layer = self.weights, self.layer
        attention_output = sum(self._head_outputs(), weights.out_bias)
        require_close(
            attention_output / self.post_norm1.scale[:, None], self._sites["attention_output"], layer, "attention"
        )
        read = self._without_gain(self.norm2, self._mlp_input)
        require_close(read @ weights.gate.T + weights.gate_bias, self._sites["mlp_gate"], layer, "W_gate of the MLP")
        if weights.up is not None:
            require_close(read @ weights.up.T + weights.up_bias, self._sites["mlp_up"], layer, "W_up of the MLP")
        added = self._site("mlp_hidden") @ weights.down.T + weights.down_bias
        require_close(added / self.post_norm2.scale[:, None], self._sites["mlp_output"], layer, "W_down of the MLP")
        residual = self._site("residual_pre") + self._site("attention_output")
        if not self.layout.parallel:
            require_close(residual, self._sites["residual_mid"], layer, "the sum behind attention")
        residual = residual + self._site("mlp_output")
        require_close(residual, self._sites["residual_post"], layer, "the sum of the residual stream")

    def check_scores(self) -> None:
        """Require of attention in strips that every strip is what the formulas say; else `InputError`."""
        if self.attention is not None:
            self._remade(slice(0, self.value.shape[1]), live=True).check(self.layer)

    def _head_outputs(self) -> Iterator[Float[Tensor, "query d_model"]]:
        """Output of each head in the residual stream; one pattern in this dtype at a time."""
        if self.attention is not None:
            yield from (
                mean @ left_factor.T
                for mean, left_factor in zip(self.mean_value, self.weights.left_factor, strict=True)
            )
            return
        for pattern, value, left_factor in zip(self.raw_pattern, self.value, self.weights.left_factor, strict=True):
            yield pattern.to(value) @ value @ left_factor.T

    def _site(self, name: str) -> Tensor:
        return self._sites[name].to(self.dtype)

    def _applied(self, norm: Norm | None, scale_site: str, site: str) -> AppliedNorm:
        if norm is None:
            stream = self._site("residual_pre")
            return AppliedNorm(None, torch.ones_like(stream[:, 0]), torch.zeros_like(stream))
        scale, x = self._site(scale_site)[:, 0], norm.centre(self._site(site))
        return AppliedNorm(norm, scale, x / (scale[:, None] * x.shape[-1] ** 0.5))
