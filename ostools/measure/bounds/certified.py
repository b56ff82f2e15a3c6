"""A block as the variants read it, and the certified bounds of the frozen derivative: no free
constant, none estimated from below (docs/theory.md 3.2).

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
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from ostools.ground.errors import InputError
from ostools.measure.formulas.block import BlockTerms
from ostools.measure.formulas.forward import Forward
from ostools.measure.formulas.weights import final_norm
from ostools.theory import path_sum

Edges = Float[Tensor, "query key"]


class BlockView:
    """Terms of one block that the variants read, each computed once and only if a variant asks for
    it.
    """

    def __init__(self, block: BlockTerms, mlp_norm: str) -> None:
        self.block = block
        self._norms = path_sum.mlp_norm_products if mlp_norm == "product" else path_sum.mlp_norms

    def require_causal(self, variant: str) -> None:
        """`InputError` where a replaced pattern looks at later tokens: this variant cuts off what
        it takes for no path.
        """
        if any(bool(head.triu(1).any()) for head in self.block.raw_pattern):
            raise InputError(
                f"block {self.block.layer}: variant {variant!r} expects a causal pattern, the one "
                "that an edit put in place looks at later tokens; use 'windowed(1)' or 'local', "
                "or measure with sensitivity()"
            )

    @cached_property
    def mean_pattern(self) -> Float[Tensor, "query key"]:
        """The paper has one head; on a model with several its alpha is their mean."""
        heads = len(self.block.raw_pattern)
        return path_sum.weighted_pattern(
            self.block.raw_pattern, self.block.r1.new_full((heads,), 1.0 / heads)
        )

    @cached_property
    def weighted(self) -> Float[Tensor, "query key"]:
        """sum_h omega_h alpha_ij^h."""
        omega = path_sum.head_norms(self.block.weights.left_factor, self.block.weights.right)
        return path_sum.weighted_pattern(self.block.raw_pattern, omega)

    @cached_property
    def mlp_norms(self) -> Float[Tensor, " pos"]:
        """||D_i||: the MLP with the norms before and after it."""
        weights, block = self.block.weights, self.block
        bare = self._norms(weights.down, weights.gate, weights.up, *block.slopes)
        return bare / (block.r2 * block.rp2)

    def rows(self, part: slice) -> Float[Tensor, "part d_model d_model"]:
        """I + D_i for the positions of `part`."""
        weights, block = self.block.weights, self.block
        p, q = block.slopes
        scale = (block.r2 * block.rp2)[part, None, None]
        return path_sum.with_identity(
            path_sum.mlp_jacobian(
                weights.down, weights.gate, weights.up, p[part], None if q is None else q[part]
            )
            / scale
        )

    @cached_property
    def sigma_psi(self) -> float:
        """max over positions of ||J_psi||, at this input: a gated MLP has no global Lipschitz
        constant.
        """
        weights, block = self.block.weights, self.block
        maps = weights.bare_down, weights.bare_gate, weights.bare_up
        return float(self._norms(*maps, *block.slopes).max())

    @cached_property
    def beta_1(self) -> float:
        """min_j r1_j / ||g1||_inf."""
        return float(self.block.r1.min() / self.block.weights.gain_1)

    @cached_property
    def beta_2(self) -> float:
        """min_j r2_j / ||g2||_inf."""
        return float(self.block.r2.min() / self.block.weights.gain_2)


def local(view: BlockView) -> Edges:
    """(1 + ||D_i||) ( sum_h omega_h alpha_ij^h / (rp1_i r1_j) + delta_ij )."""
    scales = view.block.r1, view.block.rp1
    return path_sum.local_edges(view.weighted, *scales, view.mlp_norms, view.block.parallel)


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
    last: list[int]
    k: int

    def __post_init__(self) -> None:
        scale = self.run.final_norm_scale
        self.rows = torch.eye(len(scale), dtype=scale.dtype, device=scale.device)[self.last]
        self.front: Float[Tensor, "d_model d_model"] | None = final_norm(self.run.model)
        self.group: list[tuple[BlockTerms, Float[Tensor, "pos d_model d_model"]]] = []

    def step(self, view: BlockView) -> None:
        view.require_causal(f"windowed({self.k})")
        self.group.append((view.block, view.rows(slice(None))))
        if len(self.group) == self.k or view.block.layer == 0:
            self.rows = self.rows @ self._norms()
            self.group, self.front = [], None

    def _norms(self) -> Edges:
        """W of the group, every token as query; of the top group, which has the final norm inside,
        only `last` (others 0).
        """
        scale = self.run.final_norm_scale
        norms = torch.zeros(len(scale), len(scale), dtype=scale.dtype, device=scale.device)
        for i in range(len(scale)) if self.front is None else self.last:
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

    def values(self) -> Float[Tensor, "last pos"]:
        return self.rows
