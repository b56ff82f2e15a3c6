"""The step of the prediction through a parallel block, whose attention and MLP both read what enters it.

    S_jj' <- sum_ii' X_ij^T S_ii' X_i'j',   X_ij = T_ij + delta_ij D_j,   T_ij = delta_ij I + sum_h At_h,ij B_h

Carried are the kernel and the two directions of `second_moment`, by the same rules: what touches the last token by `own`, other
pairs by `shared`. What is new are products of D_j with the heads, tr(D_j^T Sigma B_h), for which left_h and right_h are enough:
O(d d_mlp H d_head) a block, as much as the MLP's own directions.
"""

from __future__ import annotations

import torch
from jaxtyping import Float

from ostools.theory.path_sum.second_moment import (
    Direction,
    Heads,
    Kernel,
    Mlp,
    Moments,
    attended,
    coefficients,
    inverse,
    normalised,
    only_last,
    others_of,
    with_last,
)

PerHead = Float[torch.Tensor, "head pos"]


def crossed_traces(mlp: Mlp, heads: Heads, metric: Direction) -> PerHead:
    """tr(D_j^T metric B_h)."""
    pulled = mlp.down.T @ metric @ heads.left

    def of(inner: Float[torch.Tensor, "d_mlp d_model"]) -> Float[torch.Tensor, "d_mlp head"]:
        return (pulled * (inner @ heads.right.T)).unflatten(1, (-1, heads.d_head)).sum(2)

    found = mlp.p @ of(mlp.gate)
    return (found if mlp.up is None or mlp.q is None else found + mlp.q @ of(mlp.up)).T


def crossed_sum(mlp: Mlp, heads: Heads, weights: PerHead, metric: Direction) -> Direction:
    """sum_hj w_hj D_j^T metric B_h."""
    pulled = mlp.down.T @ metric @ heads.left

    def of(inner: Float[torch.Tensor, "d_mlp d_model"], slopes: Float[torch.Tensor, "pos d_mlp"]) -> Direction:
        return inner.T @ (pulled * (weights @ slopes).T.repeat_interleave(heads.d_head, 1)) @ heads.right

    found = of(mlp.gate, mlp.p)
    return found if mlp.up is None or mlp.q is None else found + of(mlp.up, mlp.q)


def squares(mlp: Mlp, heads: Heads, metric: Direction) -> Kernel:
    """tr(X_ij^T metric X_ij) for a metric of trace 1."""
    at_itself = mlp.overlap(metric).diagonal() - metric.trace()
    crossed = (heads.weighted.diagonal(dim1=1, dim2=2) * crossed_traces(mlp, heads, metric)).sum(0)
    return heads.squares(metric) + torch.diag(at_itself + 2.0 * crossed)


def through_parallel(moments: Moments, mlp: Mlp, heads: Heads) -> Moments:
    """S_jj' <- sum_ii' X_ij^T S_ii' X_i'j': the pairs with n in them by `own`, the others by `shared`."""
    weighted, kernel, own = heads.weighted, moments.kernel, moments.own
    step = heads.last_step() + mlp.mean(only_last(kernel))
    turned = step.T @ own
    along = torch.cat([kernel[-1:], kernel[-1] @ weighted])
    row = torch.cat([turned.trace()[None], heads.traces(turned)]) @ along + kernel[-1] * mlp.traces(turned)
    row[-1] = (turned * step.T).sum()
    alone = torch.cat([only_last(kernel)[None], weighted[:, -1]])
    others, gram = along - alone, heads.gram(own)
    # What meets on one side: attention with attention, and the MLP of j with what attention brings to n.
    met = alone.T @ gram @ others + (kernel[:, -1, None] * crossed_traces(mlp, heads, own).T) @ weighted[:, -1]
    moved = alone.T @ gram @ alone
    between, passed = kernel.clone(), torch.zeros_like(weighted)
    between[-1] = between[:, -1] = 0.0
    if moments.shared is not None:
        passed = between @ weighted
        moved = moved + attended(between, passed, weighted, heads.gram(moments.shared))
        moved = moved + between * mlp.inner_products(moments.shared)
        met = met + between * mlp.traces(moments.shared)[:, None]
        met = met + torch.einsum("hj,hjk->jk", crossed_traces(mlp, heads, moments.shared), passed)
    moved = moved + met + met.T
    weights = inverse(others_of(moved.diagonal()))
    shared = _direction_of_others(moments, mlp, heads, weights, (alone, others), (between, passed))
    return normalised(with_last(moved, row), turned @ step, shared, moments.log_size)


def _direction_of_others(
    moments: Moments,
    mlp: Mlp,
    heads: Heads,
    weights: Float[torch.Tensor, " pos"],
    to_last: tuple[Float[torch.Tensor, "basis pos"], Float[torch.Tensor, "basis pos"]],
    among: tuple[Kernel, Float[torch.Tensor, "head pos pos"]],
) -> Direction:
    """sum_j w_j S_jj over the tokens but the last, after the step."""
    (alone, others), (between, passed) = to_last, among
    half = (alone * weights) @ others.T
    total = heads.sandwich((alone * weights) @ alone.T + half + half.T, moments.own)
    to_n = weights * moments.kernel[:, -1] * heads.weighted[:, -1]
    met = crossed_sum(mlp, heads, to_n, moments.own)
    if moments.shared is not None:
        shared, own_share = moments.shared, weights * between.diagonal()
        total = total + heads.sandwich(coefficients(between, passed, heads.weighted, weights), shared)
        mean = mlp.mean(own_share)
        met = met + mean.T @ shared + crossed_sum(mlp, heads, weights * passed.diagonal(dim1=1, dim2=2), shared)
        # What the MLPs have in common turns the direction; what differs between tokens is taken as undirected.
        size = own_share.sum()
        common = mean.T @ shared @ mean / torch.where(size > 0, size, 1.0)
        rest = own_share @ mlp.inner_products(shared).diagonal() - common.trace()
        total = total + common + rest / len(common) * torch.eye(len(common), dtype=common.dtype, device=common.device)
    return total + met + met.T
