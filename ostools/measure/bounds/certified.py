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
from ostools.measure.formulas.block import Block
from ostools.measure.formulas.forward import Forward
from ostools.measure.formulas.weights import final_norm
from ostools.theory import path_sum

Edges = Float[Tensor, "query key"]


class BlockView:
    """Terms of one block that the variants read, each computed once and only if a variant asks for
    it.
    """

    def __init__(self, block: Block, mlp_norm: str) -> None:
        self.block = block
        self._norms = path_sum.mlp_norm_products if mlp_norm == "product" else path_sum.mlp_norms

    def require_causal(self, variant: str) -> None:
        """`InputError` where a replaced pattern looks at later tokens: this variant cuts off what
        it takes for no path.
        """
        if any(bool(head.triu(1).any()) for head in self.block.raw_pattern):
            raise InputError(
                f"block {self.block.layer}: variant {variant!r} expects a causal pattern, the one that an edit put in place "
                f"looks at later tokens; use 'windowed(1)' or 'local', or measure with sensitivity()"
            )

    @property
    def parallel(self) -> bool:
        """Whether attention and MLP both read what enters the block, whose Jacobian is then T + D
        and not (I + D) T.
        """
        return self.block.layout.parallel

    @cached_property
    def mean_pattern(self) -> Float[Tensor, "query key"]:
        """The paper has one head; on a model with several its alpha is their mean."""
        heads = len(self.block.raw_pattern)
        return path_sum.weighted_pattern(
            self.block.raw_pattern, self.block.norm1.scale.new_full((heads,), 1.0 / heads)
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
        bare = self._norms(weights.down, weights.gate, weights.up, block.p, block.q)
        return bare / (block.norm2.scale * block.post_norm2.scale)

    def rows(self, part: slice) -> Float[Tensor, "part d_model d_model"]:
        """I + D_i for the positions of `part`."""
        weights, block = self.block.weights, self.block
        q = None if block.q is None else block.q[part]
        scale = (block.norm2.scale * block.post_norm2.scale)[part, None, None]
        return path_sum.with_identity(
            path_sum.mlp_jacobian(weights.down, weights.gate, weights.up, block.p[part], q) / scale
        )

    @cached_property
    def sigma_psi(self) -> float:
        """max over positions of ||J_psi||, at this input: a gated MLP has no global Lipschitz
        constant.
        """
        weights, block = self.block.weights, self.block
        maps = weights.bare_down, weights.bare_gate, weights.bare_up
        return float(self._norms(*maps, block.p, block.q).max())

    @cached_property
    def beta_1(self) -> float:
        """min_j r1_j / ||g1||_inf."""
        return float(self.block.norm1.scale.min() / self.block.weights.gain_1)

    @cached_property
    def beta_2(self) -> float:
        """min_j r2_j / ||g2||_inf."""
        return float(self.block.norm2.scale.min() / self.block.weights.gain_2)


def local(view: BlockView) -> Edges:
    """(1 + ||D_i||) ( sum_h omega_h alpha_ij^h / (rp1_i r1_j) + delta_ij )."""
    scales = view.block.norm1.scale, view.block.post_norm1.scale
    return path_sum.local_edges(view.weighted, *scales, view.mlp_norms, view.parallel)


Cotangents = Float[Tensor, "d_out pos d_model"]


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
        """g^T (I + D) T for cotangents on the first positions: from what leaves the block to what
        enters it.

        Of a parallel block g^T (T + D).
        """
        n = cotangents.shape[1]
        after = torch.einsum("opd,pde->ope", cotangents, self.rows[:n])
        scaled = (cotangents if self.parallel else after) / self.post_norm1_scale[:n, None]
        received = torch.zeros_like(after)
        for pattern, left_matrix, right in zip(
            self.pattern[:, :n, :n], self.left_factor, self.right, strict=True
        ):
            received += pattern.mT @ (scaled @ left_matrix) @ right
        return after + received / self.norm1_scale[:n, None]


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
        self.group: list[HeldBlock] = []

    def step(self, view: BlockView) -> None:
        view.require_causal(f"windowed({self.k})")
        block, weights = view.block, view.block.weights
        scales, rows = (block.norm1.scale, block.post_norm1.scale), view.rows(slice(None))
        self.group.append(
            HeldBlock(
                block.pattern, weights.left_factor, weights.right, *scales, rows, view.parallel
            )
        )
        if len(self.group) == self.k or block.layer == 0:
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
        rows = self.group[0].rows
        front = torch.eye(rows.shape[-1], dtype=rows.dtype, device=rows.device)
        if self.front is not None:
            front = self.front / self.run.final_norm_scale[i]
        cotangents = front.new_zeros(len(front), i + 1, front.shape[1])
        cotangents[:, i] = front
        for block in self.group:
            cotangents = block.pull(cotangents)
        return cotangents.transpose(0, 1)

    def values(self) -> Float[Tensor, "last pos"]:
        return self.rows
