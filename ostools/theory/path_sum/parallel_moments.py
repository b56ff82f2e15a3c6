"""The step of the prediction through a parallel block, whose attention and MLP both read what enters it.

    S_jj' <- sum_ii' X_ij^T S_ii' X_i'j',   X_ij = T_ij + delta_ij D_j,   T_ij = delta_ij I + sum_h At_h,ij B_h

Carried are the kernel and the two directions of `second_moment`, by the same rules: what touches the last token by `own`, other
pairs by `shared`. What is new are products of D_j with the heads, tr(D_j^T Sigma B_h) = tr(F^T D_j B_h^T F): O(H k d d_mlp) a
block. D_j and T_nn, the last token's own block, are the real ones where nothing is held; what the other T_ij have beside the
held ones comes in by `Heads.corrected`.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from ostools.theory.path_sum.mlp_moments import Factor, Kernel, Met, Mlp
from ostools.theory.path_sum.second_moment import (
    Heads,
    Moments,
    Sketch,
    attended,
    carrying,
    coefficients,
    gram,
    inverse,
    narrow,
    normalised,
    only_last,
    others_of,
    sandwich,
    with_last,
)

PerHead = Float[Tensor, "head pos"]
Basis = Float[Tensor, "basis d_model probe"]


def crossed_traces(mlp: Mlp, met: Met, pulled: Basis) -> PerHead:
    """tr(D_j^T Sigma B_h), `pulled` as `Heads.pulled` gives it."""
    return mlp.traces(met, *mlp.read(pulled[1:]))


def overlaps(mlp: Mlp, met: Met, weights: Float[Tensor, " pos"]) -> tuple[Factor, Kernel]:
    """sum_j w_j D_j^T F, and every pair's tr((I + D_j)^T Sigma (I + D_j'))."""
    (turned,) = mlp.pulled([met], [weights])
    common = met.factor + turned
    return turned, mlp.overlap(met, common, *mlp.read(common, mlp.probes))


def squares(mlp: Mlp, heads: Heads, factor: Factor) -> Kernel:
    """tr(X_ij^T Sigma X_ij) for Sigma = F F^T of trace 1."""
    (met,) = mlp.meet(factor)
    overlap = overlaps(mlp, met, torch.full_like(mlp.p[:, 0], 1.0 / len(mlp.p)))[1]
    at_itself = overlap.diagonal() - factor.square().sum()
    crossed = heads.weighted.diagonal(dim1=1, dim2=2) * crossed_traces(mlp, met, heads.pulled(factor))
    return heads.squares(factor) + torch.diag(at_itself + 2.0 * crossed.sum(0))


def through_parallel(moments: Moments, mlp: Mlp, heads: Heads, sketches: tuple[Sketch, Sketch]) -> Moments:
    """S_jj' <- sum_ii' X_ij^T S_ii' X_i'j': the pairs with n in them by `own`, the others by `shared`."""
    moments = replace(moments, own=narrow(moments.own, sketches[0]))
    weighted, kernel, own = heads.weighted, moments.kernel, moments.own
    pulled = heads.pulled(own)
    (met_own,) = mlp.meet(own)
    step = heads.last_pulled(pulled) + mlp.pulled([met_own], [only_last(kernel)])[0]
    along = torch.cat([kernel[-1:], kernel[-1] @ weighted])
    row = (pulled * step).sum((1, 2)) @ along + kernel[-1] * mlp.traces(met_own, *mlp.read(step))
    row[-1] = step.square().sum()
    alone = torch.cat([only_last(kernel)[None], weighted[:, -1]])
    inner = gram(pulled)
    # What meets on one side: attention with attention, and the MLP of j with what attention brings to n.
    met = alone.T @ inner @ (along - alone)
    met = met + (kernel[:, -1, None] * crossed_traces(mlp, met_own, pulled).T) @ weighted[:, -1]
    moved = alone.T @ inner @ alone
    if moments.shared is not None:
        between, shared, basis = kernel.clone(), moments.shared, heads.pulled(moments.shared)
        between[-1] = between[:, -1] = 0.0
        passed, (met_shared,) = between @ weighted, mlp.meet(shared)
        turned, overlap = overlaps(mlp, met_shared, carrying(kernel))
        moved = moved + attended(between, passed, weighted, gram(basis)) + between * (overlap - shared.square().sum())
        met = met + torch.einsum("hj,hjk->jk", crossed_traces(mlp, met_shared, basis), passed)
    moved = heads.corrected(moved + met + met.T, moments, mlp)
    weights = inverse(others_of(moved.diagonal()))
    wide = sandwich((alone * weights) @ alone.T, pulled)
    if moments.shared is not None:
        # What the MLPs have in common turns the direction, I + Dbar in the place of I; what differs is taken as undirected.
        basis[0] += turned
        share = weights * between.diagonal()
        rest = share @ overlap.diagonal() - share.sum() * basis[0].square().sum()
        undirected = sketches[0].undirected(shared) * (rest.clamp_min(0.0) / len(shared)).sqrt()
        common = sandwich(coefficients(between, passed, weighted, weights), basis)
        wide = torch.cat([wide, common, undirected], dim=1)
    return normalised(with_last(moved, row), row[-1], step, sketches[1].of(wide), moments.log_size)
