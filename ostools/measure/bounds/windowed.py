"""`windowed(k)`: bounds out of exact Jacobians over k blocks. A diagnostic of what chaining costs, not a cheap bound.

    W[a, b]_ij = || d v_i^(b) / d v_j^(a) ||_2, patterns and scales held         where b - a <= k, final norm included at b = L
               = min over a < c < b of ( W[c, b] W[a, c] )_ij, entry by entry    elsewhere

so that it falls as k grows, and W[0, L] is the measured norm once k >= L. Cost: n d_model cotangents a block through up to k
blocks, and a d_model x d_model norm for every pair, window and block; memory L n d_model^2. Source: docs/theory.md 3.2.
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

Rows = Float[Tensor, "query key"]
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

    def _windows(self, top: int) -> dict[int, Rows]:
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
