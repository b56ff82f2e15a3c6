"""A block as the variants read it, and the certified bounds of its Jacobian, (I + D_i) T_ij, or T_ij + delta_ij D_i
where attention and MLP are parallel: no free constant, none estimated from below (docs/theory.md 3.2).

`local` >= `windowed(1)` >= the norm of that Jacobian. A block costs, beside its pattern, n norms of d x d matrices for `local`
(none with mlp_norm="product"), and for `windowed(1)` n more and n^2 / 2 of m x m ones, m = min(d_model, n_kv d_head). Where
d_model is small the measured profile is cheaper than `windowed(1)`.

`windowed(k)` is out of exact Jacobians over k blocks: a diagnostic of what chaining costs, not a cheap bound.

    W[a, b]_ij = || d v_i^(b) / d v_j^(a) ||_2, patterns and scales held         where b - a <= k, final norm included at b = L
               = min over a < c < b of ( W[c, b] W[a, c] )_ij, entry by entry    elsewhere

so that it falls as k grows, and W[0, L] is the measured norm once k >= L. Cost: n d_model cotangents a block through up to k
blocks, and a d_model x d_model norm for every pair, window and block; memory L n d_model^2.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from ostools.ground.errors import InputError
from ostools.measure.formulas.block import Block
from ostools.measure.formulas.forward import Forward
from ostools.measure.formulas.weights import final_norm
from ostools.theory import path_sum

Edges = Float[Tensor, "query key"]


class BlockView:
    """Terms of one block that the variants read, each computed once and only if a variant asks for it."""

    def __init__(self, block: Block, mlp_norm: str) -> None:
        self.block = block
        self._norms = path_sum.mlp_norm_products if mlp_norm == "product" else path_sum.mlp_norms

    def require_causal(self, variant: str) -> None:
        """`InputError` where a replaced pattern looks at later tokens: this variant cuts off what it takes for no path."""
        if any(bool(head.triu(1).any()) for head in self.block.raw_pattern):
            raise InputError(
                f"block {self.block.layer}: variant {variant!r} expects a causal pattern, the one that an edit put in place "
                f"looks at later tokens; use 'windowed(1)' or 'local', or measure with sensitivity()"
            )

    @property
    def parallel(self) -> bool:
        """Whether attention and MLP both read what enters the block, whose Jacobian is then T + D and not (I + D) T."""
        return self.block.layout.parallel

    @cached_property
    def mean_pattern(self) -> Float[Tensor, "query key"]:
        """The paper has one head; on a model with several its alpha is their mean."""
        heads = len(self.block.raw_pattern)
        return path_sum.weighted_pattern(self.block.raw_pattern, self.block.norm1_scale.new_full((heads,), 1.0 / heads))

    @cached_property
    def scales(self) -> Float[Tensor, "query key"]:
        """rp1_i r1_j."""
        return self.block.post_norm1_scale[:, None] * self.block.norm1_scale

    @cached_property
    def weighted(self) -> Float[Tensor, "query key"]:
        """sum_h omega_h alpha_ij^h."""
        omega = path_sum.head_norms(self.block.weights.left_factor, self.block.weights.right)
        return path_sum.weighted_pattern(self.block.raw_pattern, omega)

    def self_updates(self, part: slice) -> Float[Tensor, "part d_model d_model"]:
        """T_ii - I for the positions of `part`."""
        weights, scale = self.block.weights, self.scales.diagonal()
        return path_sum.self_updates(self.block.pattern, weights.left_factor, weights.right, scale, part)

    @cached_property
    def mlp_norms(self) -> Float[Tensor, " pos"]:
        """||D_i||: the MLP with the norms before and after it."""
        weights, block = self.block.weights, self.block
        bare = self._norms(weights.down, weights.gate, weights.up, block.p, block.q)
        return bare / (block.norm2_scale * block.post_norm2_scale)

    def rows(self, part: slice) -> Float[Tensor, "part d_model d_model"]:
        """I + D_i for the positions of `part`."""
        weights, block = self.block.weights, self.block
        q = None if block.q is None else block.q[part]
        scale = (block.norm2_scale * block.post_norm2_scale)[part, None, None]
        return path_sum.with_identity(
            path_sum.mlp_jacobian(weights.down, weights.gate, weights.up, block.p[part], q) / scale
        )

    @cached_property
    def sigma_psi(self) -> float:
        """max over positions of ||J_psi||, at this input: a gated MLP has no global Lipschitz constant."""
        weights, block = self.block.weights, self.block
        maps = weights.bare_down, weights.bare_gate, weights.bare_up
        return float(self._norms(*maps, block.p, block.q).max())

    @cached_property
    def beta_1(self) -> float:
        """min_j r1_j / ||g1||_inf."""
        return float(self.block.norm1_scale.min() / self.block.weights.gain_1)

    @cached_property
    def beta_2(self) -> float:
        """min_j r2_j / ||g2||_inf."""
        return float(self.block.norm2_scale.min() / self.block.weights.gain_2)


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


Cotangents = Float[Tensor, "query d_out pos d_model"]


@dataclass(frozen=True)
class HeldBlock:
    """A block with patterns and scales held, as one linear map of the residual stream."""

    pattern: Float[Tensor, "head query key"]
    left_factor: Float[Tensor, "head d_model d_head"]
    right: Float[Tensor, "head d_head d_model"]
    norm1_scale: Float[Tensor, " pos"]
    post_norm1_scale: Float[Tensor, " pos"]
    rows: Float[Tensor, "pos d_model d_model"]
    parallel: bool

    def pull(self, cotangents: Cotangents) -> Cotangents:
        """g^T (I + D) T for cotangents on the first positions: from what leaves the block to what enters it.

        Of a parallel block g^T (T + D).
        """
        n = cotangents.shape[2]
        after = torch.einsum("qopd,pde->qope", cotangents, self.rows[:n])
        scaled = (cotangents if self.parallel else after) / self.post_norm1_scale[:n, None]
        received = torch.zeros_like(after)
        for pattern, left_matrix, right in zip(self.pattern[:, :n, :n], self.left_factor, self.right, strict=True):
            received += pattern.mT @ (scaled @ left_matrix) @ right
        return after + received / self.norm1_scale[:n, None]


@dataclass
class WindowedFold:
    """Collects the blocks, then measures every window of at most k of them and joins the rest."""

    run: Forward
    last: list[int]
    k: int

    def __post_init__(self) -> None:
        self.blocks: list[HeldBlock] = []

    def step(self, view: BlockView) -> None:
        view.require_causal(f"windowed({self.k})")
        block, weights = view.block, view.block.weights
        rows = view.rows(slice(None))
        scales = block.norm1_scale, block.post_norm1_scale
        held_block = HeldBlock(block.pattern, weights.left_factor, weights.right, *scales, rows, view.parallel)
        self.blocks.insert(0, held_block)

    def values(self) -> Float[Tensor, "last pos"]:
        depth = len(self.blocks)
        norms_by_window = {
            (bottom, top): norms for top in range(1, depth + 1) for bottom, norms in self._windows(top).items()
        }
        for length in range(self.k + 1, depth + 1):
            for bottom in range(depth - length + 1):
                top = bottom + length
                chained = [
                    norms_by_window[middle, top] @ norms_by_window[bottom, middle] for middle in range(bottom + 1, top)
                ]
                norms_by_window[bottom, top] = torch.stack(chained).amin(0)
        return norms_by_window[0, depth]

    def _windows(self, top: int) -> dict[int, Edges]:
        """|| d v_i^(top) / d v_j^(bottom) || for every bottom within k blocks: every query i, at the end only `last`."""
        scale = self.run.final_norm_scale
        n, ends_here = len(scale), top == len(self.blocks)
        queries = self.last if ends_here else list(range(n))
        eye = torch.eye(self.blocks[0].rows.shape[-1], dtype=scale.dtype, device=scale.device)
        front = final_norm(self.run.model) if ends_here else eye
        bottoms = range(top - 1, max(0, top - self.k) - 1, -1)
        norms_by_bottom = {
            bottom: torch.zeros(len(queries), n, dtype=scale.dtype, device=scale.device) for bottom in bottoms
        }
        for row, i in enumerate(queries):
            cotangents = torch.zeros(1, len(eye), i + 1, len(eye), dtype=scale.dtype, device=scale.device)
            cotangents[0, :, i] = front / scale[i] if ends_here else front
            for bottom in bottoms:
                cotangents = self.blocks[bottom].pull(cotangents)
                norms_by_bottom[bottom][row, : i + 1] = path_sum.spectral_norms(cotangents[0].transpose(0, 1))
        return norms_by_bottom
