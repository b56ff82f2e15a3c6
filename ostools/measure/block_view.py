"""What the variants read off one block, each number computed once and only if a variant asks for it."""

from __future__ import annotations

from functools import cached_property

from jaxtyping import Float
from torch import Tensor

from ostools.measure.forward import Block
from ostools.theory import operators, paths


class BlockView:
    """What the variants read off one block, each computed once and only if a variant asks for it."""

    def __init__(self, block: Block, mlp_norm: str) -> None:
        self.block = block
        self._norms = operators.mlp_norms if mlp_norm == "svd" else operators.mlp_norm_products

    @cached_property
    def mean_pattern(self) -> Float[Tensor, "query key"]:
        """The paper has one head; on a model with several its alpha is their mean."""
        return self.block.pattern.mean(0)

    @cached_property
    def weighted(self) -> Float[Tensor, "query key"]:
        """sum_h omega_h alpha_ij^h."""
        omega = operators.head_norms(self.block.weights.left, self.block.weights.right)
        return paths.weighted_pattern(self.block.pattern, omega)

    @cached_property
    def mlp_norms(self) -> Float[Tensor, " pos"]:
        """||D_i||: the MLP with the norms before and after it."""
        weights, block = self.block.weights, self.block
        bare = self._norms(weights.down, weights.gate, weights.up, block.p, block.q)
        return bare / (block.norm2_scale * block.post_norm2_scale)

    @cached_property
    def sigma_psi(self) -> float:
        """max over positions of ||J_psi||, at this input: a gated MLP has no global Lipschitz constant."""
        weights, block = self.block.weights, self.block
        return float(self._norms(weights.bare_down, weights.bare_gate, weights.bare_up, block.p, block.q).max())

    @cached_property
    def beta_1(self) -> float:
        """min_j r1_j / ||g1||_inf."""
        return float(self.block.norm1_scale.min() / self.block.weights.gain_1)

    @cached_property
    def beta_2(self) -> float:
        """min_j r2_j / ||g2||_inf."""
        return float(self.block.norm2_scale.min() / self.block.weights.gain_2)
