"""One block linearised at a prompt: its MLP and its attention as linear maps of row vectors.

    g_i <- g_i (I + D_i)            D_i = P_i W_down (diag(p_i) W_gate + diag(q_i) W_up) diag(g2) / r2_i N(z_i)
    g_j <- sum_i g_i T_ij           T_ij = delta_ij I + P_i [ values + keys + queries ] diag(g1) / r1_j N(v_j)

In a parallel block g_j <- g_j D_j + sum_i g_i T_ij, with v_j in the place of z_j.

Holding patterns constant leaves out keys and queries, holding norm scales every N(x) = I - u u^T (docs/theory.md 3.2), holding
activations the p_i of a gated MLP; the p_i of a plain one is then act(a) / a.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from ostools.measure.formulas.block import AppliedNorm, Block
from ostools.measure.formulas.scores import Strip
from ostools.models.lazy_cast import dense
from ostools.theory.path_sum import mlp_jacobian

# Position first: the cotangents of a position lie side by side, so that every product below is one large one.
Gradients = Float[Tensor, "pos row d_model"]
AtQueries = Float[Tensor, "query row d_model"]
AtKeys = Float[Tensor, "key row d_model"]
PerHead = Float[Tensor, "head query row d_head"]


@dataclass(frozen=True)
class LinearNorm:
    """diag(g) / r N(x) C at every position: `factor` = g / r, `direction` = u (None where the scale is held)."""

    factor: Float[Tensor, "pos 1 d_model"]
    direction: Float[Tensor, "pos 1 d_model"] | None
    centred: bool

    @classmethod
    def of(cls, applied: AppliedNorm, rows: slice, live: bool) -> LinearNorm:
        """Norm at the positions `rows`; the identity where there is no norm."""
        norm, scale, direction = applied
        if norm is None:
            return cls(torch.ones_like(direction[rows, None]), None, centred=False)
        factor = norm.gain.to(scale) / scale[rows, None, None]
        return cls(factor, direction[rows, None] if live else None, norm.centred)

    def pull(self, gradient: Gradients) -> Gradients:
        """A row vector: g diag(factor) N C."""
        return self._projected(gradient * self.factor)

    def _projected(self, x: Gradients) -> Gradients:
        """N C x, in place."""
        if self.centred:
            x -= x.mean(-1, keepdim=True)
        if self.direction is None:
            return x
        return x.addcmul_(x @ self.direction.mT, self.direction, value=-1.0)


def mlp_core(block: Block, rows: slice) -> Float[Tensor, "pos d_model d_model"]:
    """W_down (diag(p_i) W_gate + diag(q_i) W_up) at the positions `rows`: D without its norms, the same in every linearisation
    that does not hold activations.

    It is made by one product with W_down. Without it d_model rows go through all three weights, in every linearisation.
    """
    weights, q = block.weights, None if block.q is None else block.q[rows]
    return mlp_jacobian(weights.bare_down, weights.bare_gate, weights.bare_up, block.p[rows], q)


class LinearMlp:
    """D at the positions `rows`; `core`: its `mlp_core` there, where it is made."""

    def __init__(
        self,
        block: Block,
        rows: slice,
        live_norms: bool,
        live_activation: bool,
        core: Float[Tensor, "pos d_model d_model"] | None = None,
    ) -> None:
        self.before = LinearNorm.of(block.norm2, rows, live_norms)
        self.after = None if block.layout.after_mlp is None else LinearNorm.of(block.post_norm2, rows, live_norms)
        self.core = core
        if core is None:
            weights, slopes = block.weights, (block.p, block.q) if live_activation else block.held_slopes
            # W_gate and W_up, or W_in alone, each with the slope between it and W_down. Without a slope there is none.
            pairs = zip((weights.bare_gate, weights.bare_up), slopes, strict=True)
            parts = [(weight, slope[rows, None]) for weight, slope in pairs if weight is not None and slope is not None]
            self.down, (self.inner, self.slopes) = weights.bare_down, zip(*parts, strict=True)

    def pull(self, gradient: Gradients) -> Gradients:
        after = gradient if self.after is None else self.after.pull(gradient)
        if self.core is not None:
            return self.before.pull(after @ self.core)
        hidden = after @ self.down
        inner_gradient = hidden * self.slopes[0] @ self.inner[0]
        for slope, inner in zip(self.slopes[1:], self.inner[1:], strict=True):
            inner_gradient += hidden * slope @ inner
        return self.before.pull(inner_gradient)


class LinearScores:
    """Derivative of the pattern: d alpha_ij = alpha_ij (d s_ij - sum_m alpha_im d s_im), d s_ij = slope_ij d (q_i . k_j)."""

    def __init__(self, model: TransformerBridge, block: Block, rows: slice, live_norms: bool) -> None:
        heads, attention = block.heads, model.blocks[block.layer].attn
        self.live_norms = live_norms
        self.rows = rows
        self.value, self.key, self.query = heads.value, heads.key, heads.query[:, rows].contiguous()
        self.mean = block.mean_value[:, rows]  # vbar_i
        self.query_map, self.key_map = heads.query_map.at(rows), heads.key_map
        self.query_weight, self.key_weight = (dense(weight).to(self.query) for weight in (attention.W_Q, attention.W_K))

    def pulled(self, value_gradient: PerHead) -> PulledScores:
        """Start a pull from the gradient of each head's output; no strip has been added to it yet."""
        along = value_gradient @ self.mean[..., None]
        kv_heads, (_, _, rows, d_head) = len(self.key_weight), value_gradient.shape
        d_key = value_gradient.new_zeros(kv_heads, rows, self.key.shape[1], d_head)
        return PulledScores(self, value_gradient, along, torch.empty_like(value_gradient), d_key)


@dataclass(frozen=True)
class PulledScores:
    """A pull through the scores, strip by strip: `d_query` is filled, `d_key` summed."""

    scores: LinearScores
    value_gradient: PerHead
    along: Float[Tensor, "head query row 1"]
    d_query: PerHead
    d_key: Float[Tensor, "kv_head row key d_head"]

    def see(self, strip: Strip, answer: Float[Tensor, "head query key"]) -> None:
        rows, keys = strip.queries, strip.keys
        heads, m, n = answer.shape
        kv_heads, c, _, d_head = self.d_key.shape
        d_score = self.value_gradient[:, rows].reshape(heads, m * c, d_head) @ self.scores.value[:, keys].mT
        d_score = d_score.view(heads, m, c, n).sub_(self.along[:, rows]).mul_(answer[:, :, None])
        self.d_query[:, rows] = (d_score.view(heads, m * c, n) @ self.scores.key[:, keys]).view(heads, m, c, d_head)
        # Query heads that share a key are summed inside the product.
        queries = self.scores.query[:, rows].reshape(kv_heads, -1, d_head)
        self.d_key[:, :, keys] += (d_score.view(kv_heads, -1, c * n).mT @ queries).view(kv_heads, c, n, d_head)

    def to_residual(self) -> tuple[AtQueries, AtKeys]:
        """At the queries' positions, and at the keys'."""
        scores = self.scores
        at_queries = scores.query_map.pull(self.d_query.permute(2, 0, 1, 3), norms=scores.live_norms)
        at_keys = scores.key_map.pull(self.d_key.transpose(0, 1), norms=scores.live_norms)
        return _to_residual(at_queries, scores.query_weight), _to_residual(at_keys, scores.key_weight)


def _to_residual(
    gradient: Float[Tensor, "row kv_head pos d_head"], weight: Float[Tensor, "kv_head d_model d_head"]
) -> Gradients:
    """sum_h g_h W_h^T."""
    c, kv_heads, pos, d_head = gradient.shape
    flat = gradient.permute(2, 0, 1, 3).reshape(pos, c, kv_heads * d_head)
    return flat @ weight.mT.reshape(kv_heads * d_head, -1)


class LinearAttention:
    """T - I: from the queries at the positions `rows` to every key."""

    def __init__(
        self,
        model: TransformerBridge,
        block: Block,
        rows: slice,
        live_pattern: bool,
        live_norms: bool,
    ) -> None:
        self.rows = rows
        self.before = LinearNorm.of(block.norm1, slice(None), live_norms)
        self.after = None if block.layout.after_attention is None else LinearNorm.of(block.post_norm1, rows, live_norms)
        self.out = block.weights.bare_left
        self.value_weight = dense(model.blocks[block.layer].attn.W_V).to(self.out)
        self.strips = block.strips(rows, live_pattern)
        self.scores = LinearScores(model, block, rows, live_norms) if live_pattern else None
        self.pos = len(block.norm1.scale)

    def pull(self, gradient: AtQueries) -> AtKeys:
        value_gradient = self._at_values(gradient)
        (_, _, c, d_head), kv_heads = value_gradient.shape, len(self.value_weight)
        d_value = value_gradient.new_zeros(kv_heads, self.pos, c, d_head)
        scores = None if self.scores is None else self.scores.pulled(value_gradient)
        for strip in self.strips:
            received = value_gradient[:, strip.queries].reshape(kv_heads, -1, c * d_head)
            to_keys = strip.pattern.view(kv_heads, received.shape[1], -1).mT @ received
            d_value[:, strip.keys] += to_keys.view(kv_heads, -1, c, d_head)
            if scores is not None and strip.answer is not None:
                scores.see(strip, strip.answer)
        x = _to_residual(d_value.permute(2, 0, 1, 3), self.value_weight)
        if scores is not None:
            at_queries, at_keys = scores.to_residual()
            x += at_keys
            x[self.rows] += at_queries
        return self.before.pull(x)

    def _at_values(self, gradient: AtQueries) -> PerHead:
        """The gradient of each head's weighted sum of values: through the norm after the attention and W_O."""
        m, c, d_model = gradient.shape
        after = gradient if self.after is None else self.after.pull(gradient)
        return (after.view(1, m * c, d_model) @ self.out).view(len(self.out), m, c, -1)

    def pull_own(self, gradient: AtQueries) -> AtQueries:
        """What `pull` leaves at each query's own position: the values, by the query's weight on itself. Patterns are held."""
        value_gradient = self._at_values(gradient)
        weighted = value_gradient * self.own_weights[..., None, None]
        d_value = weighted.unflatten(0, (len(self.value_weight), -1)).sum(1)
        before = replace(self.before, factor=self.before.factor[self.rows])
        return before.pull(_to_residual(d_value.permute(2, 0, 1, 3), self.value_weight))

    @property
    def own_weights(self) -> Float[Tensor, "head query"]:
        """alpha_ii of every query."""
        parts = []
        for strip in self.strips:
            column = torch.arange(strip.queries.start, strip.queries.stop) + (self.rows.start or 0) - strip.keys.start
            keys = strip.pattern.shape[-1]
            weights = strip.pattern[:, torch.arange(len(column)), column.clamp(0, keys - 1)]
            parts.append(weights * ((column >= 0) & (column < keys)).to(weights))
        return torch.cat(parts, dim=-1)
