"""The certified bounds of one block's Jacobian, (I + D_i) T_ij, or T_ij + delta_ij D_i where attention and MLP are parallel:
no free constant, none estimated from below (docs/theory.md 3.2).

`local` >= `windowed(1)` >= the norm of that Jacobian. A block costs, beside its pattern, n norms of d x d matrices for `local`
(none with mlp_norm="product"), and for `windowed(1)` n more and n^2 / 2 of m x m ones, m = min(d_model, n_kv d_head). Where
d_model is small the measured profile is cheaper than `windowed(1)`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ostools.measure.bounds.block_view import BlockView
from ostools.measure.formulas.forward import Forward
from ostools.measure.formulas.weights import final_norm
from ostools.theory import path_sum

Edges = Float[Tensor, "query key"]


def local(view: BlockView) -> Edges:
    """(1 + ||D_i||) ( sum_h omega_h alpha_ij^h / (rp1_i r1_j) + delta_ij )."""
    scales = view.block.norm1_scale, view.block.post_norm1_scale
    return path_sum.local_edges(view.weighted, *scales, view.mlp_norms, view.parallel)


@dataclass
class JointFold:
    """`windowed(1)`: the product of ||(I + D_i) T_ij||, the final norm inside the last block's."""

    run: Forward
    last: list[int]

    def __post_init__(self) -> None:
        scale = self.run.final_norm_scale
        self.rows = torch.eye(len(scale), dtype=scale.dtype, device=scale.device)[self.last]
        self.front: Float[Tensor, "d_model d_model"] | None = final_norm(self.run.model)

    def step(self, view: BlockView) -> None:
        if self.front is None:
            self.rows = self.rows @ joint_norms(view, list(range(len(view.block.norm1_scale))))
        else:
            self.rows = joint_norms(view, self.last, self.front) / self.run.final_norm_scale[self.last, None]
            self.front = None

    def values(self) -> Float[Tensor, "last pos"]:
        return self.rows


def joint_norms(
    view: BlockView, queries: list[int], front: Float[Tensor, "d_model d_model"] | None = None
) -> Float[Tensor, "queries key"]:
    """||F (I + D_i) T_ij|| for the queries i and every key j, patterns and scales held; F = I if not given.

    Of a parallel block ||F (T_ij + delta_ij D_i)||.
    """
    weights, pattern = view.block.weights, view.block.pattern
    right = path_sum.right_factors(weights.right)
    norm_rows = []
    for i in queries:
        query_slice = slice(i, i + 1)
        row = view.rows(query_slice)[0] if front is None else front @ view.rows(query_slice)[0]
        update = view.self_updates(query_slice)[0]
        same = row @ path_sum.with_identity(update)
        if view.parallel:
            same = row + (update if front is None else front @ update)
            row = path_sum.with_identity(torch.zeros_like(update)) if front is None else front
        norms = path_sum.combination_norms(pattern[:, i], row @ weights.left_factor @ right) / view.scales[i]
        norms[i] = path_sum.spectral_norms(same)
        norm_rows.append(norms)
    return torch.stack(norm_rows)
