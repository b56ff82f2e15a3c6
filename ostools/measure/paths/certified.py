"""The certified edges of one block: upper bounds of what it moves from j to i, no free constant, none estimated from below.

Each >= the next >= the norm of the block's own Jacobian, (I + D_i) T_ij, or T_ij + delta_ij D_i where attention and MLP are
parallel (docs/theory.md 3.2). A block costs, beside its pattern:

    uniform, local    n norms of d x d matrices (mlp_norm="certified", "svd")
    heads             and n^2 / 2 of m x m, m = min(d_model, n_kv d_head)
    edge, windowed(1) and n more of d x d
    local-full        O(H d_model d_head n^2), and 2 n norms of d x d
    edge-full         n^2 / 2 norms of d x min(d_model, 2 n_kv d_head), n of d x d; n d (d + H d_head) numbers of memory

Of these matrices D_i alone is proved without squaring where its two largest singular values are not too near each other: in
CPU time of one thread `local` then takes 19 to 27 plain passes on the embedded model at 64 tokens, 34 at 256. The largest
part is to form D_i, d x d, in float32. Where d_model is small the measured profile is cheaper than all but `uniform` and
`local`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from ostools.measure.formulas.forward import Forward
from ostools.measure.formulas.weights import final_norm
from ostools.measure.paths.block_view import BlockView
from ostools.theory.path_sum import edges, paths

Edges = Float[Tensor, "query key"]


def _scales(view: BlockView) -> tuple[Tensor, Tensor]:
    """r1 and rp1."""
    return view.block.norm1_scale, view.block.post_norm1_scale


def uniform(view: BlockView) -> Edges:
    """(1 + max_j ||D_j||) ( sum_h omega_h alpha_ij^h / (min rp1 min r1) + delta_ij )."""
    return paths.uniform_edges(view.weighted, *_scales(view), view.mlp_norms, view.parallel)


def local(view: BlockView) -> Edges:
    """(1 + ||D_i||) ( sum_h omega_h alpha_ij^h / (rp1_i r1_j) + delta_ij )."""
    return paths.local_edges(view.weighted, *_scales(view), view.mlp_norms, view.parallel)


def heads(view: BlockView) -> Edges:
    """(1 + ||D_i||) ( || sum_h alpha_ij^h B_h || / (rp1_i r1_j) + delta_ij )."""
    return paths.local_edges(view.head_sums, *_scales(view), view.mlp_norms, view.parallel)


def edge(view: BlockView) -> Edges:
    """||I + D_i|| ||T_ij||; of a parallel block ||T_ij + delta_ij D_i||."""
    norms = view.head_sums / view.scales
    if view.parallel:
        return norms.diagonal_scatter(view.whole_norms)
    return view.row_norms[:, None] * norms.diagonal_scatter(view.self_norms)


def local_full(view: BlockView) -> Edges:
    """(1 + ||gp2||_inf ||J_psi diag(g2)|| / (rp2_i r2_i)) (delta_ij + value + key + delta_ij query), nothing held."""
    update = edges.live_update_norms(view.live_attention, view.live_omega, view.block.post_norm1_scale)
    if view.parallel:
        return paths.with_skip(update, 1.0 + view.live_mlp_norms)
    return (1.0 + view.live_mlp_norms)[:, None] * paths.with_skip(update)


def edge_full(view: BlockView) -> Edges:
    """||(I + D_i) T_ij||, of a parallel block ||T_ij + delta_ij D_i||, nothing held."""
    attention, rows = view.live_attention, view.live_rows
    if view.parallel:
        return edges.live_edge_norms(attention, rows)
    return edges.live_edge_norms(replace(attention, left=rows[:, None] @ attention.left), rows)


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
    right = edges.right_factors(weights.right)
    found = []
    for i in queries:
        here = slice(i, i + 1)
        row = view.rows(here)[0] if front is None else front @ view.rows(here)[0]
        update = view.self_updates(here)[0]
        same = row @ edges.with_identity(update)
        if view.parallel:
            same = row + (update if front is None else front @ update)
            row = edges.with_identity(torch.zeros_like(update)) if front is None else front
        norms = edges.combination_norms(pattern[:, i], row @ weights.left @ right) / view.scales[i]
        norms[i] = edges.spectral_norms(same)
        found.append(norms)
    return torch.stack(found)
