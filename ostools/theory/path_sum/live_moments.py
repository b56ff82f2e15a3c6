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

from ostools.theory.path_sum import operators
from ostools.theory.path_sum.second_moment import Heads, Kernel, Mlp, Moments

Metric = Float[Tensor, "d_model d_model"]
Vectors = Float[Tensor, "pos d_model"]


@dataclass(frozen=True)
class LiveHeads(Heads):
    """Attention with nothing held. `wide` = H d_head: heads side by side; `bare` is `left` without the post-norm's gain.

    d (rotated query of a head at i) / d normalised residual stream = query_turn_i query_weight; so for keys.
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
    query_turn: Float[Tensor, "head pos d_head d_head"]
    key_turn: Float[Tensor, "head pos d_head d_head"]
    query_weight: Float[Tensor, "head d_head d_model"]
    key_weight: Float[Tensor, "head d_head d_model"]

    def added(self, i: int) -> Float[Tensor, "wide d_model"]:
        """T_ii - I = P_i left Z_i: this Z_i, with 1 / r1_i and N_i in it."""
        alpha, beta = self.pattern[:, i, : i + 1], (self.pattern * self.slope)[:, i, : i + 1]
        moved = self._moved(i)
        own = (
            beta[:, i, None, None]
            * moved[:, i, :, None]
            * (self.query[:, i, None] @ self.key_turn[:, i] @ self.key_weight)
        )
        around = torch.einsum("hm,hme,hmf->hef", beta, moved, self.key[:, : i + 1])
        around = around @ self.query_turn[:, i] @ self.query_weight
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
        """tr(T_ij^T metric T_ij), nothing held, for every i in `queries` and j <= i; 0 elsewhere. O(H^2 n^2 d_head^2).

        The core left^T P_i^T metric P_i left is G - x_i z_i^T - z_i x_i^T (x = z = 0 without a post-norm), and N_j^2 is
        I - shrink_j u_j u_j^T; both are written out, so that every sum over coordinates is one product of two matrices.
        """
        asked = range(len(self.before))[queries]
        total = torch.zeros(len(asked), len(self.before), dtype=metric.dtype, device=metric.device)
        each = 6 * (len(self.before) + self.d_head) * len(self.right) * metric.element_size()
        for part in operators.chunks(len(asked), each):
            rows = slice(asked[part.start], asked[part.stop - 1] + 1)
            cores = self._cores(metric, rows)
            total[part, : rows.stop] = self._between(cores, rows).tril(rows.start - 1)
            total[part, rows].diagonal().copy_(self._selves(metric, cores, rows))
        return total

    def _between(self, cores: tuple[Tensor, Tensor, Tensor], queries: slice) -> Float[Tensor, "query key"]:
        """tr(T_ij^T metric T_ij) for j < i, without what query i itself moves; keys up to the last query."""
        (core, x, z), keys = cores, slice(queries.stop)
        query, pattern, values = self.query[:, queries], self.pattern[:, queries, keys], self.value[:, keys]
        seen, mean, shrink = self._seen[:, keys], pattern @ values, self._shrink[keys]
        alpha = pattern / (self.after_scale[queries, None] * self.before_scale[keys])
        beta = alpha * self.slope[:, queries, keys]
        x_moved, z_moved = (side @ values.mT - (side * mean).sum(2)[..., None] for side in (x, z))
        x_seen, z_seen = x @ seen.mT, z @ seen.mT
        # q_i^T d k_j: what a score between the two answers to the residual stream at j, before the weight.
        pulled = torch.einsum("hie,hjef->hijf", query, self.key_turn[:, keys])
        at_key = torch.einsum("hijf,hjf->hij", pulled, torch.einsum("hfd,jd->hjf", self.key_weight, self.before[keys]))
        total = torch.zeros_like(alpha[0])
        for k in range(len(alpha)):
            inner, rows = core[:, :, k], self._heads @ self._heads[k].T
            value = (inner * rows).sum((1, 2))[:, None] - shrink * ((seen @ inner) * seen[k]).sum(2)
            value = value[:, None] - 2.0 * ((x @ rows) * z[k]).sum(2)[:, :, None] + 2.0 * shrink * x_seen * z_seen[k]
            read = torch.einsum("ijf,hef->hije", pulled[k], self._heads @ self.key_weight[k].T)
            moved, average = values[k] @ inner.mT, mean[k] @ inner.mT
            taken = torch.stack([average, x, z], dim=3)
            score = torch.einsum("hije,hje->hij", read, moved)
            still, with_x, with_z = (read @ taken).unbind(3)
            score = score - still - z_moved[k] * with_x - x_moved[k] * with_z
            reached = torch.einsum("hje,hje->hj", seen, moved)[:, None] - average @ seen.mT
            reached = reached - x_seen * z_moved[k] - z_seen * x_moved[k]
            score = score - shrink * at_key[k] * reached
            turned = (moved * values).sum(2)[:, None] - mean @ moved.mT - average @ values.mT
            turned = turned + (average * mean).sum(2)[:, :, None] - 2.0 * x_moved * z_moved[k]
            both = torch.einsum("ijf,hgf->hijg", pulled[k], self.key_weight @ self.key_weight[k].T)
            both = (both * pulled).sum(3) - shrink * at_key * at_key[k]
            total += (alpha * (alpha[k] * value + 2.0 * beta[k] * score) + beta * beta[k] * both * turned).sum(0)
        return total

    def _selves(self, metric: Metric, cores: tuple[Tensor, Tensor, Tensor], queries: slice) -> Float[Tensor, " query"]:
        """tr(T_ii^T metric T_ii), T_ii = I + P_i left Z_i, with Z_i of head h in three parts:

        alpha right_h + turn_h query_weight_h + own_h key_h^T,    turn: what query i moves, key: what key i moves.
        """
        (core, x, z), keys = cores, slice(queries.stop)
        pattern, values = self.pattern[:, queries, keys], self.value[:, keys]
        beta, u, shrink = pattern * self.slope[:, queries, keys], self.before[queries], self._shrink[queries]
        mean, seen_keys = pattern @ values, self.key[:, keys]
        around = torch.einsum("him,hmef->hief", beta, values[..., None] * seen_keys[:, :, None])
        around = around - mean[..., None] * (beta @ seen_keys)[:, :, None]
        turn = (around @ self.query_turn[:, queries]).transpose(0, 1)  # [query, head, d_head, d_head]
        # The diagonal of the strip: [query, head, ...].
        here = pattern[:, :, queries].diagonal(dim1=1, dim2=2).T
        own = self.slope[:, queries, queries].diagonal(dim1=1, dim2=2).T * here
        own = own[..., None] * (self.value[:, queries] - mean).transpose(0, 1)
        key = torch.einsum("hie,hief->ihf", self.query[:, queries], self.key_turn[:, queries])
        x, z = x.transpose(0, 1), z.transpose(0, 1)

        def pulled(rows: Float[Tensor, "query head d_head"]) -> Vectors:
            """rows^T Z_i."""
            by_query = (rows[:, :, None] @ turn)[:, :, 0]
            by_key = (rows * own).sum(2, keepdim=True) * key
            sides = (here[..., None] * rows, self._heads), (by_query, self.query_weight), (by_key, self.key_weight)
            return torch.stack([part.flatten(1) @ side.flatten(0, 1) for part, side in sides]).sum(0)

        weights = torch.stack([self._heads, self.query_weight, self.key_weight])
        lifted = self.gain * self.after[queries]
        # Z_i u_i by head.
        at = torch.einsum("shfd,id->sihf", weights, u)
        at_own = here[..., None] * at[0] + (turn @ at[1][..., None])[..., 0]
        at_own = at_own + own * (key * at[2]).sum(2, keepdim=True)
        # First order: tr(metric P_i left Z_i N_i).
        after = torch.einsum("shfd,dhe->shfe", weights, (metric @ self.left).unflatten(1, (-1, self.d_head)))
        first = here @ after[0].diagonal(dim1=1, dim2=2).sum(1) + torch.einsum("ihef,hfe->i", turn, after[1])
        first = first + torch.einsum("ihf,hfe,ihe->i", key, after[2], own)
        turned = lifted @ metric
        x_pulled = pulled(x)
        first = first - (turned * x_pulled).sum(1)
        out = (u @ metric @ self.left).unflatten(1, (-1, self.d_head)) - (turned * u).sum(1)[:, None, None] * x
        first = (first - (out * at_own).sum((1, 2))) / (self.after_scale[queries] * self.before_scale[queries])
        second = self._second(core, here, turn, own, key) - shrink * torch.einsum(
            "ihe,hekf,ikf->i", at_own, core, at_own
        )
        z_pulled = pulled(z)
        x_at, z_at = (x * at_own).sum((1, 2)), (z * at_own).sum((1, 2))
        second = second - 2.0 * ((x_pulled * z_pulled).sum(1) - shrink * x_at * z_at)
        return metric.trace() + 2.0 * first + second / (self.after_scale[queries] * self.before_scale[queries]).square()

    def _second(self, core: Tensor, here: Tensor, turn: Tensor, own: Tensor, key: Tensor) -> Float[Tensor, " query"]:
        """sum over heads h, k of <core_hk, Z_h Z_k^T>, before the norm's projection."""
        values, asked, keys = self._heads, self.query_weight, self.key_weight
        total = torch.zeros_like(here[:, 0])
        for k in range(len(values)):
            inner = core[:, :, k]
            by_value, by_query = values @ asked[k].T, asked @ asked[k].T
            moved = inner @ turn[:, k, None]  # core_hk turn_k
            total = total + here[:, k] * (here @ (inner * (values @ values[k].T)).sum((1, 2)))
            total = total + 2.0 * (here * torch.einsum("ihef,hef->ih", moved, by_value)).sum(1)
            total = total + (moved * (turn @ by_query)).sum((1, 2, 3))
            mine = torch.einsum("hef,if->ihe", inner, own[:, k])
            along = torch.einsum("hef,if->ihe", values @ keys[k].T, key[:, k]) * here[..., None]
            asking = torch.einsum("hef,if->ihe", asked @ keys[k].T, key[:, k])
            along = along + (turn @ asking[..., None])[..., 0]
            both = torch.einsum("hef,if->ihe", keys @ keys[k].T, key[:, k])
            total = total + 2.0 * (mine * along).sum((1, 2))
            total = total + ((mine * own).sum(2) * (both * key).sum(2)).sum(1)
        return total

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

    @cached_property
    def _heads(self) -> Float[Tensor, "head d_head d_model"]:
        return self.right.unflatten(0, (-1, self.d_head))

    @cached_property
    def _seen(self) -> Float[Tensor, "head pos d_head"]:
        """right u_j."""
        return self._by_head(self.before @ self.right.T)

    @cached_property
    def _shrink(self) -> Float[Tensor, " pos"]:
        """N_j^2 = I - shrink_j u_j u_j^T."""
        return 2.0 - self.before.square().sum(1)

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
        return self.live_squares(metric, queries) - self.squares(metric)[queries]

    def _moved(self, i: int) -> Float[Tensor, "head key d_head"]:
        """v_j - vbar_i for j <= i."""
        values = self.value[:, : i + 1]
        return values - self.pattern[:, i, None, : i + 1] @ values

    def _projected(self, inner: Float[Tensor, "wide d_model"], i: int) -> Float[Tensor, "wide d_model"]:
        return inner - torch.outer(inner @ self.before[i], self.before[i])


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
