"""The path sum that predicts: mean squares in place of worst cases, carried from the top of the network down.

What is wanted of J_j = d y_n / d v_j is ||J_j||_F^2 = tr S_jj, with S_jj' = J_j^T J_j'. A block maps S linearly:

    S_jj' <- (I + D_j)^T S_jj' (I + D_j')                                   through the MLP, D_j its Jacobian
    S_jj' <- sum_ii' T_ij^T S_ii' T_i'j',  T_ij = delta_ij I + sum_h At_h,ij B_h      through attention

with patterns and scales held (`frozen`); At_h = diag(1/rp1) A_h diag(1/r1), B_h = diag(gp1) W_OV^h diag(g1). S is n^2 matrices
of d x d: too many. Carried are all their traces, the kernel K_jj' = tr S_jj', which lets paths through different positions
interfere, and two directions, matrices Sigma of trace 1, so that S_jj' ~ K_jj' Sigma:

    `own`     for every pair with the last token n in it: S_nn itself, exactly, because only n's own chain leads to n
    `shared`  for all other pairs: the mean of S_jj / tr S_jj over the other tokens

A step from such an S gives exact traces. Where blocks meet each other in random directions both Sigma are I / d in mean, and
K is exact in mean; with operators that are multiples of the identity it is exact. `shared` turns with what the MLPs of the
tokens have in common (their mean D); what differs between tokens is taken as undirected. It bounds nothing.

Cost: no gradient, one forward pass; a block costs O(H n^3) for attention, O(d_mlp^2 (d + n)) for the MLP's inner products
(or k probes, O(k n d_mlp d)), O(d^2 (d_mlp + H d_head)) for the directions. The first step of all, from y_n, is exact. On one
CPU core `second-moment` takes 6 to 10 plain passes on the embedded model (64 tokens), about 35 at d_model 512, d_mlp 2048,
64 tokens: there the directions alone, d x d matrices through every block, count more operations than a pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ostools.theory.path_sum import operators

Kernel = Float[Tensor, "pos pos"]
Direction = Float[Tensor, "d_model d_model"]


@dataclass(frozen=True)
class Mlp:
    """D_j = down (diag(p_j) gate + diag(q_j) up): the norms' gains in the weights, their scales in p and q."""

    down: Float[Tensor, "d_model d_mlp"]
    gate: Float[Tensor, "d_mlp d_model"]
    up: Float[Tensor, "d_mlp d_model"] | None
    p: Float[Tensor, "pos d_mlp"]
    q: Float[Tensor, "pos d_mlp"] | None
    probes: Float[Tensor, "d_model probe"] | None = None

    def mean(self, weights: Float[Tensor, " pos"]) -> Direction:
        """sum_j w_j D_j: linear in p and q, so one matrix product."""
        inner = (weights @ self.p)[:, None] * self.gate
        if self.up is not None and self.q is not None:
            inner = inner + (weights @ self.q)[:, None] * self.up
        return self.down @ inner

    def traces(self, metric: Direction) -> Float[Tensor, " pos"]:
        """tr(metric D_j)."""
        left = self.down.T @ metric.T
        trace = self.p @ (self.gate * left).sum(1)
        return trace if self.up is None or self.q is None else trace + self.q @ (self.up * left).sum(1)

    def overlap(self, metric: Direction) -> Kernel:
        """tr((I + D_j)^T metric (I + D_j')); metric of trace 1."""
        trace = self.traces(metric)
        return 1.0 + trace[:, None] + trace[None, :] + self.inner_products(metric)

    def inner_products(self, metric: Direction) -> Kernel:
        """tr(D_j^T metric D_j'), `metric` symmetric; exact by three ff x ff Gram matrices, O(ff^2 (d + n)), or by `probes`."""
        if self.probes is not None:
            return self._probed(metric, self.probes)
        gate, up, p, q = self.gate, self.up, self.p, self.q
        turned, total = metric @ self.down, p.new_zeros(len(p), len(p))
        # A block of rows of the Gram matrices at a time: a whole one takes 2.4 GB at 24,576 hidden units.
        for part in operators.chunks(len(gate), 3 * len(gate) * gate.element_size()):
            outer = self.down[:, part].T @ turned
            if up is None or q is None:
                total += p[:, part] @ (outer * (gate[part] @ gate.T)) @ p.T
                continue
            # <., .> of gate with gate, of gate with up and of up with gate in one product, made symmetric afterwards.
            gates = p[:, part] @ (outer * (gate[part] @ gate.T)) + 2.0 * q[:, part] @ (outer * (up[part] @ gate.T))
            total += gates @ p.T + q[:, part] @ (outer * (up[part] @ up.T)) @ q.T
        return (total + total.T) / 2.0

    def _probed(self, metric: Direction, probes: Float[Tensor, "d_model probe"]) -> Kernel:
        """Without bias, as a mean over k probes z with E[z z^T] = I: O(k n ff d).

        <D_j, D_j'> = <D, D_j> + <D, D_j'> - <D, D> + <D_j - D, D_j' - D> with D the mean: only the last term is estimated.
        """
        p, q = self.p, self.q
        mean = Mlp.mean(self, torch.full_like(p[:, 0], 1.0 / len(p)))
        pulled = mean.T @ metric
        with_mean = Mlp.traces(self, pulled)
        total = p.new_zeros(len(p), len(p))
        centred_p, centred_q = p - p.mean(0), None if q is None else q - q.mean(0)
        for probe in probes.T:
            hidden = centred_p * (self.gate @ probe)
            if self.up is not None and centred_q is not None:
                hidden.addcmul_(centred_q, (self.up @ probe)[None])
            moved = hidden @ self.down.T
            total.addmm_(moved @ metric, moved.T)
        return total / probes.shape[1] + with_mean[:, None] + with_mean[None, :] - (pulled * mean.T).sum()


@dataclass(frozen=True)
class Heads:
    """Every head's B_h = left_h right_h side by side, and At_h: the pattern with the norms' scales in it."""

    left: Float[Tensor, "d_model head_d_head"]
    right: Float[Tensor, "head_d_head d_model"]
    weighted: Float[Tensor, "head query key"]

    @property
    def d_head(self) -> int:
        return self.right.shape[0] // len(self.weighted)

    def sum(self, coefficients: Float[Tensor, " head"]) -> Direction:
        """sum_h c_h B_h."""
        return (self.left * coefficients.repeat_interleave(self.d_head)) @ self.right

    def traces(self, metric: Direction) -> Float[Tensor, " head"]:
        """tr(metric B_h)."""
        return ((self.right @ metric) * self.left.T).sum(1).unflatten(0, (-1, self.d_head)).sum(1)

    def last_step(self) -> Direction:
        """T_nn."""
        eye = torch.eye(len(self.left), dtype=self.left.dtype, device=self.left.device)
        return eye + self.sum(self.weighted[:, -1, -1])

    def gram(self, metric: Direction) -> Float[Tensor, "basis basis"]:
        """tr(B_a^T metric B_b) over the basis I, B_1, ..., B_H."""
        once = torch.cat([metric.trace()[None], self.traces(metric)])
        inner = (self.left.T @ metric @ self.left) * (self.right @ self.right.T)
        heads = len(self.weighted)
        twice = inner.reshape(heads, self.d_head, heads, self.d_head).sum((1, 3))
        return torch.cat([once[None], torch.cat([once[1:, None], twice], dim=1)])

    def sandwich(self, coefficients: Float[Tensor, "basis basis"], metric: Direction) -> Direction:
        """sum_ab c_ab B_a^T metric B_b over the same basis; c symmetric."""
        turned = metric @ self.left
        wide = coefficients.repeat_interleave(self._widths(coefficients), 0)
        wide = wide.repeat_interleave(self._widths(coefficients), 1)
        linear = (turned * wide[0, 1:]) @ self.right
        return (
            wide[0, 0] * metric
            + linear
            + linear.T
            + self.right.T @ ((self.left.T @ turned) * wide[1:, 1:]) @ self.right
        )

    def squares(self, metric: Direction) -> Float[Tensor, "query key"]:
        """tr(T_ij^T metric T_ij) for a metric of trace 1."""
        gram = self.gram(metric)
        skip = gram[0, 0] + 2.0 * gram[0, 1:] @ self.weighted.diagonal(dim1=1, dim2=2)
        return torch.einsum("hk,hij,kij->ij", gram[1:, 1:], self.weighted, self.weighted) + torch.diag(skip)

    def corrected(self, kernel: Kernel, before: Moments) -> Kernel:
        """The kernel after the step, with what is not in the weights; nothing here, where all is held."""
        return kernel

    def _widths(self, coefficients: Tensor) -> Tensor:
        widths = torch.full((len(coefficients),), self.d_head, device=coefficients.device)
        widths[0] = 1
        return widths


@dataclass(frozen=True)
class Moments:
    """K in units of exp(`log_size`) = tr S_nn, last token last; `shared` is None where no other token carries anything."""

    kernel: Kernel
    own: Direction
    shared: Direction | None
    log_size: float

    def squares(self) -> Float[Tensor, " pos"]:
        """||J_j||_F^2 in float64: tr S_jj."""
        return self.kernel.diagonal().double() * torch.tensor(self.log_size, dtype=torch.float64).exp()


def top(n: int, final_norm: Float[Tensor, "d_model d_model"]) -> Moments:
    """y_n itself: S_nn = F^T F with F the Jacobian of the final norm at n, and nothing at the other n - 1 tokens."""
    kernel = final_norm.new_zeros(n, n)
    kernel[-1, -1] = final_norm.square().sum()
    return normalised(kernel, final_norm.T @ final_norm, None, 0.0)


def through_mlp(moments: Moments, mlp: Mlp) -> Moments:
    """S_jj' <- (I + D_j)^T S_jj' (I + D_j')."""
    eye = torch.eye(len(moments.own), dtype=moments.own.dtype, device=moments.own.device)
    step = eye + mlp.mean(only_last(moments.kernel))
    turned = step.T @ moments.own
    row = moments.kernel[-1] * (turned.trace() + mlp.traces(turned))
    if moments.shared is None:
        return normalised(with_last(torch.zeros_like(moments.kernel), row), turned @ step, None, moments.log_size)
    overlap = mlp.overlap(moments.shared)
    kernel = moments.kernel * overlap
    # Each token counts with its own size: in S_jj / tr S_jj that of before the step is in both.
    others = others_of(kernel.diagonal())
    if not bool(others.any()):
        return normalised(with_last(kernel, row), turned @ step, None, moments.log_size)
    weights = inverse(others) * moments.kernel.diagonal()
    weights = weights / weights.sum()
    mean = eye + mlp.mean(weights)
    common = mean.T @ moments.shared @ mean
    shared = common + (weights @ overlap.diagonal() - common.trace()) / len(eye) * eye
    return normalised(with_last(kernel, row), turned @ step, shared, moments.log_size)


def through_block(moments: Moments, mlp: Mlp, heads: Heads) -> Moments:
    """Down through a sequential block."""
    return through_attention(through_mlp(moments, mlp), heads)


def through_attention(moments: Moments, heads: Heads) -> Moments:
    """S_jj' <- sum_ii' T_ij^T S_ii' T_i'j': the pairs with n in them by `own`, the others by `shared`."""
    weighted, kernel = heads.weighted, moments.kernel
    step = heads.last_step()
    turned = step.T @ moments.own
    # Rows of n coefficients, one a basis operator I, B_1, ..., B_H: sum_i k_i T_ij for k = K_n: and, of it, n's own part.
    along = torch.cat([kernel[-1:], kernel[-1] @ weighted])
    row = torch.cat([turned.trace()[None], heads.traces(turned)]) @ along
    row[-1] = (turned * step.T).sum()
    alone = torch.cat([only_last(kernel)[None], weighted[:, -1]])
    others = along - alone
    gram = heads.gram(moments.own)
    crossed = alone.T @ gram @ others
    moved = alone.T @ gram @ alone + crossed + crossed.T
    if moments.shared is not None:
        between = kernel.clone()
        between[-1] = between[:, -1] = 0.0
        passed = between @ weighted
        moved = moved + attended(between, passed, weighted, heads.gram(moments.shared))
    moved = heads.corrected(moved, moments)
    weights = inverse(others_of(moved.diagonal()))
    mixed = (alone * weights) @ others.T
    shared = heads.sandwich((alone * weights) @ alone.T + mixed + mixed.T, moments.own)
    if moments.shared is not None:
        shared = shared + heads.sandwich(coefficients(between, passed, weighted, weights), moments.shared)
    return normalised(with_last(moved, row), turned @ step, shared, moments.log_size)


def attended(
    kernel: Kernel, passed: Float[Tensor, "head pos key"], weighted: Float[Tensor, "head query key"], gram: Tensor
) -> Kernel:
    """sum_ab g_ab A_a^T K A_b with A_0 = I; `passed` is K A_h."""
    heads = len(weighted)
    once = (gram[0, 1:] @ passed.reshape(heads, -1)).reshape(kernel.shape)
    mixed = (gram[1:, 1:] @ passed.reshape(heads, -1)).reshape(-1, kernel.shape[-1])
    return gram[0, 0] * kernel + once + once.T + weighted.reshape(mixed.shape).T @ mixed


def coefficients(
    kernel: Kernel,
    passed: Float[Tensor, "head pos key"],
    weighted: Float[Tensor, "head query key"],
    weights: Float[Tensor, " pos"],
) -> Float[Tensor, "basis basis"]:
    """sum_j w_j (A_a^T K A_b)_jj with A_0 = I."""
    heads = len(weighted)
    once = torch.cat([(weights @ kernel.diagonal())[None], passed.diagonal(dim1=1, dim2=2) @ weights])
    twice = (weighted * weights).reshape(heads, -1) @ passed.reshape(heads, -1).T
    return torch.cat([once[None], torch.cat([once[1:, None], twice], dim=1)])


def normalised(kernel: Kernel, own: Direction, shared: Direction | None, log_size: float) -> Moments:
    """Both directions of trace 1, K in units of tr S_nn."""
    size = own.trace()
    # Only exactly nothing is dropped: what is not a number stays in, and is refused where K is read.
    shared = None if shared is None or bool(shared.trace() == 0) else shared / shared.trace()
    return Moments(kernel / size, own / size, shared, log_size + float(size.double().log()))


def only_last(kernel: Kernel) -> Float[Tensor, " pos"]:
    """e_n."""
    row = torch.zeros_like(kernel[-1])
    row[-1] = 1.0
    return row


def others_of(values: Float[Tensor, " pos"]) -> Float[Tensor, " pos"]:
    """The values at all tokens but the last, 0 there."""
    return torch.cat([values[:-1], torch.zeros_like(values[-1:])])


def inverse(values: Float[Tensor, " pos"]) -> Float[Tensor, " pos"]:
    """1 / x where x > 0; 0 for a token that nothing reaches; what is no number stays so."""
    return torch.where(values <= 0, torch.zeros_like(values), 1.0 / values)


def with_last(kernel: Kernel, row: Float[Tensor, " pos"]) -> Kernel:
    """The kernel with that row and column at n."""
    kernel = kernel.clone()
    kernel[-1] = row
    kernel[:, -1] = row
    return kernel
