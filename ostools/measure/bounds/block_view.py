"""Terms of one block that the variants read, each computed once and only if a variant asks for it."""

from __future__ import annotations

from functools import cached_property

from jaxtyping import Float
from torch import Tensor

from ostools.ground.errors import InputError
from ostools.measure.formulas.block import Block
from ostools.theory import path_sum


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
