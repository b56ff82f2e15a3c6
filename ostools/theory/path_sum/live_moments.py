"""Squared norms of what nothing-held attention and MLP do, for the prediction of the real derivative.

With u_j the direction of a norm (N_j = I - u_j u_j^T), the blocks of attention between query i and key j < i are

    T_ij = P_i sum_h W_O^h ( alpha_ij W_V^h + beta_ij (v_j - vbar_i) a_ij^T ) N_j / r1_j,     beta = alpha slope
    a_ij = K_j^T q_i,   P_i = diag(gp1) / rp1_i N(o_i)

and T_ii has in addition I and, inside the bracket, sum_m beta_im (v_m - vbar_i) b_im^T, b_im = Q_i^T k_m. Their norms in a
metric Sigma, tr(T_ij^T Sigma T_ij), need (H d_head)^2 numbers a position and never a d x d matrix a pair: O(n^2 (H d_head)^2).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from ostools.theory.path_sum.second_moment import Heads, Kernel, Mlp, Moments

Metric = Float[Tensor, "d_model d_model"]
Vectors = Float[Tensor, "pos d_model"]


@dataclass(frozen=True)
class LiveHeads(Heads):
    """Attention with nothing held. `wide` = H d_head: heads side by side; `bare` is `left` without the post-norm's gain.

    `queries`_i and `keys`_j: d (rotated query, key of every head) / d normalised residual stream.
    """

    bare: Float[Tensor, "d_model wide"]
    gain: Float[Tensor, " d_model"]
    after: Vectors
    after_scale: Float[Tensor, " pos"]
    before: Vectors
    before_scale: Float[Tensor, " pos"]
    pattern: Float[Tensor, "head query key"]
    slope: Float[Tensor, "head query key"]
    query: Float[Tensor, "head pos d_head"]
    key: Float[Tensor, "head pos d_head"]
    value: Float[Tensor, "head pos d_head"]
    queries: Float[Tensor, "head pos d_head d_model"]
    keys: Float[Tensor, "head pos d_head d_model"]

    def added(self, i: int) -> Float[Tensor, "wide d_model"]:
        """T_ii - I = P_i left Z_i: this Z_i, with 1 / r1_i and N_i in it."""
        alpha, beta = self.pattern[:, i, : i + 1], (self.pattern * self.slope)[:, i, : i + 1]
        moved = self._moved(i)
        own = beta[:, i, None, None] * moved[:, i, :, None] * (self.query[:, i, None, :] @ self.keys[:, i])
        around = torch.einsum("hm,hme,hmf->hef", beta, moved, self.key[:, : i + 1]) @ self.queries[:, i]
        inner = (own + around).flatten(0, 1) + alpha[:, i].repeat_interleave(moved.shape[-1])[:, None] * self.right
        return self._projected(inner, i) / self.before_scale[i]

    def outer(self, i: int) -> Float[Tensor, "d_model wide"]:
        """P_i left."""
        scaled = self.bare / self.after_scale[i]
        return self.gain[:, None] * (scaled - torch.outer(self.after[i], self.after[i] @ scaled))

    def self_jacobian(self, i: int) -> Metric:
        """T_ii, dense."""
        return torch.eye(len(self.left), dtype=self.left.dtype, device=self.left.device) + self.outer(i) @ self.added(i)

    def live_squares(self, metric: Metric, queries: slice = slice(None)) -> Float[Tensor, "query key"]:
        """tr(T_ij^T metric T_ij), nothing held, for every i in `queries` and j < i; 0 elsewhere. O(H^2 n^2 d_head^2).

        The core left^T P_i^T metric P_i left is G - x_i z_i^T - z_i x_i^T (x = z = 0 without a post-norm), and N_j^2 is
        I - shrink_j u_j u_j^T; both are written out, so that every sum over coordinates is one product of two matrices.
        """
        core, x, z = self._cores(metric, queries)
        query, pattern = self.query[:, queries], self.pattern[:, queries]
        shrink = 2.0 - self.before.square().sum(1)
        seen, mean = self._by_head(self.before @ self.right.T), pattern @ self.value
        at_key = torch.einsum("hjed,jd->hje", self.keys, self.before)
        alpha = pattern / (self.after_scale[queries, None] * self.before_scale)
        beta = alpha * self.slope[:, queries]
        x_moved, z_moved = (side @ self.value.mT - (side * mean).sum(2)[..., None] for side in (x, z))
        x_seen, z_seen = x @ seen.mT, z @ seen.mT
        total = torch.zeros_like(alpha[0])
        for h in range(len(alpha)):
            for k in range(len(alpha)):
                inner, rows = core[h, :, k], self._head(h) @ self._head(k).T
                read = (
                    self._head(h) @ self.keys[k].mT - shrink[:, None, None] * seen[h][:, :, None] * at_key[k][:, None]
                )
                both = self.keys[h] @ self.keys[k].mT
                both = both - shrink[:, None, None] * at_key[h][:, :, None] * at_key[k][:, None]
                value = (inner * rows).sum() - shrink * (seen[h] @ inner * seen[k]).sum(1)
                value = value - 2.0 * ((x[h] @ rows) * z[k]).sum(1)[:, None] + 2.0 * shrink * x_seen[h] * z_seen[k]
                moved, average = self.value[k] @ inner.T, mean[k] @ inner.T
                score = query[k] @ torch.einsum("je,jef->jf", moved, read).T - _outer(average, query[k], read)
                score = score - z_moved[k] * _outer(x[h], query[k], read)
                score = score - x_moved[k] * _outer(z[h], query[k], read)
                turned = (moved * self.value[h]).sum(1) - mean[h] @ moved.T - average @ self.value[h].T
                turned = turned + (average * mean[h]).sum(1)[:, None] - 2.0 * x_moved[h] * z_moved[k]
                keys = _outer(query[h], query[k], both)
                total += alpha[h] * (alpha[k] * value + 2.0 * beta[k] * score) + beta[h] * beta[k] * keys * turned
        before = torch.arange(total.shape[1], device=total.device)
        return total * (before < before[queries, None])

    def self_square(self, i: int, metric: Metric) -> Float[Tensor, ""]:
        """tr(T_ii^T metric T_ii)."""
        step = self.self_jacobian(i)
        return ((metric @ step) * step).sum()

    def _cores(self, metric: Metric, queries: slice) -> tuple[Tensor, Tensor, Tensor]:
        """G [head, d_head, head, d_head] and x, z [head, pos, d_head]."""
        core = self.left.T @ metric @ self.left
        lifted = self.gain * self.after[queries]
        turned = lifted @ metric
        x = self.after[queries] @ self.bare
        z = turned @ self.left - 0.5 * (turned * lifted).sum(1, keepdim=True) * x
        heads = len(self.pattern)
        return core.reshape(heads, self.d_head, heads, self.d_head), self._by_head(x), self._by_head(z)

    def _by_head(self, wide: Float[Tensor, "pos wide"]) -> Float[Tensor, "head pos d_head"]:
        return wide.unflatten(1, (-1, self.d_head)).transpose(0, 1)

    def _head(self, h: int) -> Float[Tensor, "d_head d_model"]:
        return self.right[h * self.d_head : (h + 1) * self.d_head]

    def last_step(self) -> Metric:
        return self.self_jacobian(self.pattern.shape[-1] - 1)

    def corrected(self, kernel: Kernel, before: Moments) -> Kernel:
        """K_jj + sum_i K_ii (live - held squares of T_ij), exact where queries do not interfere; pairs in proportion."""
        sizes, last = before.kernel.diagonal(), self.pattern.shape[-1] - 1
        gained = self._gained(before.own, slice(last, last + 1))[0]
        if before.shared is not None:
            gained = gained + sizes[:last] @ self._gained(before.shared, slice(0, last))
        diagonal = kernel.diagonal()
        ratio = torch.where(diagonal > 0, (diagonal + gained) / diagonal, torch.ones_like(diagonal)).sqrt()
        # A token whose held paths cancel exactly still has what the real derivative gains.
        return (kernel * ratio[:, None] * ratio).diagonal_scatter(diagonal + gained)

    def _gained(self, metric: Metric, queries: slice) -> Float[Tensor, "query key"]:
        """tr(T_ij^T metric T_ij) for i in `queries`: nothing held, less all held."""
        live = self.live_squares(metric, queries)
        for row, i in enumerate(range(len(self.before))[queries]):
            live[row, i] = self.self_square(i, metric)
        return live - self.squares(metric)[queries]

    def _moved(self, i: int) -> Float[Tensor, "head key d_head"]:
        """v_j - vbar_i for j <= i."""
        values = self.value[:, : i + 1]
        return values - self.pattern[:, i, None, : i + 1] @ values

    def _projected(self, inner: Float[Tensor, "wide d_model"], i: int) -> Float[Tensor, "wide d_model"]:
        return inner - torch.outer(inner @ self.before[i], self.before[i])


def _outer(
    left: Float[Tensor, "query rows"], right: Float[Tensor, "query cols"], cores: Float[Tensor, "key rows cols"]
) -> Float[Tensor, "query key"]:
    """left_i^T cores_j right_i for every pair, as one product of two matrices."""
    return (left[:, :, None] * right[:, None]).flatten(1) @ cores.flatten(1).T


@dataclass(frozen=True)
class LiveMlp(Mlp):
    """D_j = P_j Dbare_j N_j with P_j = diag(gain) (I - w_j w_j^T), N_j = I - u_j u_j^T; `down` has the gain, `bare` has not.

    Traces and squares are exact; a product of two positions comes from held norms, and shrinks as both their squares do.
    """

    bare: Float[Tensor, "d_model d_mlp"] = field(kw_only=True)
    gain: Float[Tensor, " d_model"] = field(kw_only=True)
    after: Vectors = field(kw_only=True)
    before: Vectors = field(kw_only=True)

    def mean(self, weights: Float[Tensor, " pos"]) -> Metric:
        taken = (weights[:, None] * self._lifted).T @ self._pulled + (weights[:, None] * self._pushed).T @ self.before
        return super().mean(weights) - taken

    def traces(self, metric: Metric) -> Float[Tensor, " pos"]:
        lost = (self._lifted @ metric.T * self._pulled).sum(1) + (self._pushed @ metric.T * self.before).sum(1)
        return super().traces(metric) - lost

    def overlap(self, metric: Metric) -> Float[Tensor, "pos pos"]:
        """1 + tr D_j + tr D_j' + <D_j, D_j'> in the metric, the last from held norms; then both squares made exact."""
        overlap = super().overlap(metric)
        lifted = self._lifted @ metric
        shrink = 2.0 - self.before.square().sum(1)
        lost = 2.0 * (self._pulled * self._pull(self.gain * lifted)).sum(1)
        lost = lost - self._pulled.square().sum(1) * (lifted * self._lifted).sum(1)
        lost = lost + shrink * (self._pushed @ metric * self._pushed).sum(1)
        # No number where a square estimated by probes comes out negative: 0 would say that nothing passes there.
        ratio = (1.0 - lost / overlap.diagonal()).sqrt()
        return overlap * ratio[:, None] * ratio

    @cached_property
    def _lifted(self) -> Vectors:
        """diag(gain) w_j."""
        return self.gain * self.after

    @cached_property
    def _pulled(self) -> Vectors:
        """w_j^T Dbare_j."""
        return self._pull(self.after)

    @cached_property
    def _pushed(self) -> Vectors:
        """P_j Dbare_j u_j."""
        hidden = self.p * (self.before @ self.gate.T)
        if self.up is not None and self.q is not None:
            hidden = hidden + self.q * (self.before @ self.up.T)
        moved = hidden @ self.bare.T
        return self.gain * (moved - (moved * self.after).sum(1, keepdim=True) * self.after)

    def _pull(self, rows: Vectors) -> Vectors:
        """y_j^T Dbare_j."""
        hidden = rows @ self.bare
        moved = (hidden * self.p) @ self.gate
        return moved if self.up is None or self.q is None else moved + (hidden * self.q) @ self.up
