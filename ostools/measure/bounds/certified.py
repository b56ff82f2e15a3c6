"""The certified bounds of the frozen derivative: no free constant, none estimated from below
(docs/theory.md 3.2).

`local` multiplies bounds of single blocks' norms. It costs n norms of d x d matrices a block beside
its pattern (none with mlp_norm="product").

`windowed(k)` groups the blocks by k, from the last one down, takes norms of each group's exact
Jacobian, token by token, and multiplies them, with one matrix W for every group of blocks a + 1 to
b:

    W_ij = || d v_i^(b) / d v_j^(a) ||_2, patterns and scales held, the final norm included at b = L

so that `local` >= `windowed(1)` >= `windowed(k)` >= `windowed(m k)` >= `windowed(L)`, which is the
measured norm. Cost: d_model cotangents for every token through every block, and n^2 / 2 norms of d
x d matrices a group: a diagnostic of what chaining norms costs. Memory: k n d_model^2.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ostools.measure.formulas.block import BlockTerms, Forward
from ostools.measure.formulas.weights import final_norm
from ostools.theory import path_sum

Edges = Float[Tensor, "query key"]


def local(view: BlockTerms) -> Edges:
    """(1 + ||D_i||) ( sum_h omega_h alpha_ij^h / (rp1_i r1_j) + delta_ij )."""
    return path_sum.local_edges(view.weighted, view.r1, view.rp1, view.mlp_norms, view.parallel)


Cotangents = Float[Tensor, "d_out pos d_model"]


def pull(
    block: BlockTerms, rows: Float[Tensor, "all_pos d_model d_model"], cotangents: Cotangents
) -> Cotangents:
    """g^T (I + D) T for cotangents on the first positions: from what leaves a block to what enters
    it, patterns and scales held. `rows`: I + D. Of a parallel block g^T (T + D).
    """
    n, weights = cotangents.shape[1], block.weights
    after = torch.einsum("opd,pde->ope", cotangents, rows[:n])
    scaled = (cotangents if block.parallel else after) / block.rp1[:n, None]
    received = torch.zeros_like(after)
    for pattern, left_matrix, right in zip(
        block.pattern[:, :n, :n], weights.left_factor, weights.right, strict=True
    ):
        received += pattern.mT @ (scaled @ left_matrix) @ right
    return after + received / block.r1[:n, None]


@dataclass
class WindowedFold:
    """Groups the blocks by k, from the last one down, and multiplies the groups' norms."""

    run: Forward
    k: int

    def __post_init__(self) -> None:
        scale = self.run.final_norm_scale
        self.rows = torch.eye(len(scale), dtype=scale.dtype, device=scale.device)[-1:]
        self.front: Float[Tensor, "d_model d_model"] | None = final_norm(self.run.model)
        self.group: list[tuple[BlockTerms, Float[Tensor, "pos d_model d_model"]]] = []

    def step(self, block: BlockTerms) -> None:
        block.require_causal(f"windowed({self.k})")
        self.group.append((block, block.rows))
        if len(self.group) == self.k or block.layer == 0:
            self.rows = self.rows @ self._norms()
            self.group, self.front = [], None

    def _norms(self) -> Edges:
        """W of the group, every token as query; of the top group, which has the final norm inside,
        the last alone (others 0).
        """
        scale = self.run.final_norm_scale
        norms = torch.zeros(len(scale), len(scale), dtype=scale.dtype, device=scale.device)
        for i in range(len(scale)) if self.front is None else [len(scale) - 1]:
            norms[i, : i + 1] = path_sum.spectral_norms(self._jacobian(i))
        return norms

    def _jacobian(self, i: int) -> Float[Tensor, "key d_out d_model"]:
        """The group's Jacobian of token i with respect to every token up to it."""
        rows = self.group[0][1]
        front = torch.eye(rows.shape[-1], dtype=rows.dtype, device=rows.device)
        if self.front is not None:
            front = self.front / self.run.final_norm_scale[i]
        cotangents = front.new_zeros(len(front), i + 1, front.shape[1])
        cotangents[:, i] = front
        for block, rows in self.group:
            cotangents = pull(block, rows, cotangents)
        return cotangents.transpose(0, 1)

    def values(self) -> Float[Tensor, " pos"]:
        return self.rows[0]
