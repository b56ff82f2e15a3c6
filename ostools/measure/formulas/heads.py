"""The queries and keys of a block's heads, as the scores read them, and the linear maps that lead
there.

    q_i = R_i qnorm(W_Q norm1(v_i)),   k_j = R_j knorm(W_K norm1(v_j))

R_i is RoPE's rotation, of a whole head or of its first components, qnorm and knorm the norms of
queries and keys (Gemma 3, Qwen 3; OLMo 2: one over all heads together); each is the identity where
the model has none. Whatever the formulas compute is checked against the model's own numbers
(`Closeness`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from hooks import Norm
from ostools.ground.errors import InputError
from ostools.measure.formulas.weights import BlockWeights

_ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4}


class Closeness:
    """Comparison of numbers computed from the weights with the model's own, in one piece or in several.

    The model's own number has its dtype, which sets the rounding to be expected, relative to the largest.
    """

    def __init__(self, layer: int, what: str) -> None:
        self._layer, self._what = layer, what
        self._errors: list[Tensor] = []
        self._sizes: list[Tensor] = []
        self._rounding = 0.0

    def see(self, measured: Tensor, computed: Tensor) -> None:
        self._errors.append(_largest(measured - computed))
        self._sizes.append(_largest(computed))
        self._rounding = _ROUNDING[computed.dtype]

    def require(self) -> None:
        """Raises `InputError` where a number is further off than rounding, or not a number."""
        error, size = (float(torch.stack(numbers).max()) for numbers in (self._errors, self._sizes))
        if not error <= self._rounding * size:
            raise InputError(
                f"block {self._layer}: {self._what}, computed from the weights as read here, differs from the model's own by "
                f"{error:.2g} (values up to {size:.2g}); the formulas do not describe this model"
            )


def _largest(numbers: Tensor) -> Tensor:
    """max |x|, no number where one is none; in one walk, without a second tensor of absolute values."""
    low, high = torch.aminmax(numbers)
    return torch.maximum(-low, high)


def require_close(measured: Tensor, computed: Tensor, layer: int, what: str) -> None:
    """Require that numbers computed from the weights are those that the model itself computed."""
    close = Closeness(layer, what)
    close.see(measured, computed)
    close.require()


PerHead = Float[Tensor, "*batch head pos d_head"]


@dataclass(frozen=True)
class Rotation:
    """RoPE: R_i x = x cos_i + turned(x) sin_i, turned(x1, x2) = (-x2, x1) by halves; what is after `turns` stays as it is."""

    cos: Float[Tensor, "pos turns"]
    sin: Float[Tensor, "pos turns"]

    def __call__(self, x: PerHead) -> PerHead:
        (first, second, unrotated), (cos, cos_2), (sin, sin_2) = self._halves(x)
        return torch.cat(
            [torch.addcmul(first * cos, second, sin, value=-1), torch.addcmul(second * cos_2, first, sin_2), unrotated],
            -1,
        )

    def transposed(self, x: PerHead) -> PerHead:
        (first, second, unrotated), (cos, cos_2), (sin, sin_2) = self._halves(x)
        return torch.cat(
            [torch.addcmul(first * cos, second, sin_2), torch.addcmul(second * cos_2, first, sin, value=-1), unrotated],
            -1,
        )

    def _halves(self, x: PerHead) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], tuple[Tensor, ...]]:
        """The two halves of what turns, and what is behind it; the halves of the cosines and of the sines."""
        turns = self.cos.shape[-1]
        parts = x.split([turns // 2, turns // 2, x.shape[-1] - turns], dim=-1)
        return parts, self.cos.chunk(2, dim=-1), self.sin.chunk(2, dim=-1)


@dataclass(frozen=True)
class HeadMap:
    """The linear map at every position from what W_Q, or W_K, gives to the rotated queries, or keys.

    R_i (diag(g_q) / r_q,i) N(q~_i).
    """

    rotation: Rotation | None
    norm: Float[Tensor, "kv_head pos d_head"] | None  # diag(g_q) / r_q,i
    direction: Float[Tensor, "kv_head pos d_head"] | None  # q~_i / (sqrt(d_head) r_q,i)
    joint: bool = False  # the norm is one over all heads: direction is q~_i / (sqrt(n_heads d_head) r_q,i)

    def pull(
        self, gradient: Float[Tensor, "*batch kv_head pos d_head"], *, norms: bool = True
    ) -> Float[Tensor, "*batch kv_head pos d_head"]:
        """g^T R_i diag(g_q) / r_q,i N: a row vector at each position, carried back to where W gives it.

        Linear: for keys, the gradients of the query heads which share one are summed before. `norms=False` holds r_q constant.
        """
        if self.rotation is not None:
            gradient = self.rotation.transposed(gradient)
        if self.norm is None or self.direction is None:
            return gradient
        gradient = gradient * self.norm
        if not norms:
            return gradient
        # N g, N = I - u u^T: of each head, or of all heads together.
        along = (gradient * self.direction).sum((-3, -1) if self.joint else -1, keepdim=True)
        return gradient - along * self.direction

    def at(self, rows: slice) -> HeadMap:
        """Restrict the map to some positions."""
        rotation = self.rotation and Rotation(self.rotation.cos[rows], self.rotation.sin[rows])
        norm, direction = (None if values is None else values[:, rows] for values in (self.norm, self.direction))
        return replace(self, rotation=rotation, norm=norm, direction=direction)


@dataclass(frozen=True)
class Heads:
    """Queries and keys as the scores read them (rotated), values; keys and values are expanded: one a query head."""

    query: Float[Tensor, "head pos d_head"]
    key: Float[Tensor, "head pos d_head"]
    value: Float[Tensor, "head pos d_head"]
    query_map: HeadMap
    key_map: HeadMap


def read_heads(
    layer: int,
    norms: Mapping[str, Norm],
    weights: BlockWeights,
    computed: Mapping[str, Tensor],
    normalised: Float[Tensor, "pos d_model"],
    value: Float[Tensor, "head pos d_head"],
) -> Heads:
    """Queries and keys of one block from its weights, checked against the model's own, once rotated.

    `normalised` is (v - c(v)) / r1(v), before the gain; `computed` has the sites "rotary_q", ..., "rotary_sin", as far as the
    model has them.
    Raises `InputError` where weights or rotation do not give what the model computed.
    """
    group = len(weights.query) // len(weights.key)
    rotation = None
    if "rotary_cos" in computed:
        rotation = Rotation(computed["rotary_cos"].to(normalised), computed["rotary_sin"].to(normalised))
    qk_norms = [norms.get(f"blocks.{layer}.attn.{name}") for name in ("q_norm", "k_norm")]
    query, query_map = _mapped(weights.query, weights.query_bias, normalised, rotation, qk_norms[0], 1)
    key, key_map = _mapped(weights.key, weights.key_bias, normalised, rotation, qk_norms[1], group)
    for name, rotated in (("rotary_q", query), ("rotary_k", key[::group])):
        if name in computed:
            require_close(rotated.transpose(0, 1), computed[name], layer, f"{name} of attention")
    return Heads(query, key, value, query_map, key_map)


def _mapped(
    weight: Float[Tensor, "kv_head d_head d_model"],
    bias: Float[Tensor, "kv_head d_head"],
    normalised: Float[Tensor, "pos d_model"],
    rotation: Rotation | None,
    norm: Norm | None,
    group: int,
) -> tuple[Float[Tensor, "head pos d_head"], HeadMap]:
    raw = torch.einsum("hed,pd->hpe", weight, normalised) + bias[:, None]
    factor = direction = None
    joint = norm is not None and norm.gain.shape != raw.shape[-1:]
    if norm is not None:
        # One head's numbers, or all heads' side by side: what the norm is over.
        flat = raw.transpose(0, 1).flatten(1) if joint else raw
        if norm.gain.shape != flat.shape[-1:]:
            raise InputError(f"the formulas do not describe {norm.name}: found a gain of {tuple(norm.gain.shape)}")
        inverse = norm.inverse_scale(flat).to(raw)
        parts = norm.centre(flat) * inverse / flat.shape[-1] ** 0.5, inverse * norm.gain.to(raw)
        heads = weight.shape[:2]
        direction, factor = (part.unflatten(1, heads).transpose(0, 1) if joint else part for part in parts)
        raw = raw * factor
    turned = raw if rotation is None else rotation(raw)
    head_map = HeadMap(rotation, factor, direction, joint)
    return turned.repeat_interleave(group, dim=0), head_map
