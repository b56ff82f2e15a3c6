"""What the variants read off one block, each number computed once and only if a variant asks for it."""

from __future__ import annotations

from collections import Counter
from functools import cached_property, partial

import torch
from jaxtyping import Float
from torch import Tensor

from ostools.ground.errors import InputError
from ostools.measure.formulas.block import Block
from ostools.theory.path_sum import certificates, edges, operators, paths
from ostools.theory.path_sum.mlp_certificates import certified_mlp_norms


class BlockView:
    """What the variants read off one block, each computed once and only if a variant asks for it."""

    def __init__(self, block: Block, mlp_norm: str, tally: Counter[str] | None = None) -> None:
        self.block = block
        self.mlp_norm = mlp_norm
        certified = partial(certificates.certified_norms, tally=tally)
        self._dense_norms = certified if mlp_norm == "certified" else edges.spectral_norms
        self._norms = {
            "certified": partial(certified_mlp_norms, tally=tally),
            "frobenius": operators.mlp_frobenius_norms,
            "product": operators.mlp_norm_products,
        }.get(mlp_norm, operators.mlp_norms)

    def require_causal(self, variant: str) -> None:
        """`InputError` where a replaced pattern looks at later tokens: this variant cuts off what it takes for no path."""
        if any(bool(head.triu(1).any()) for head in self.block.raw_pattern):
            raise InputError(
                f"block {self.block.layer}: variant {variant!r} expects a causal pattern, the one that an edit put in place "
                f"looks at later tokens; use 'windowed(1)' or a looser bound, or measure with sensitivity()"
            )

    @property
    def parallel(self) -> bool:
        """Whether attention and MLP both read what enters the block, whose Jacobian is then T + D and not (I + D) T."""
        return self.block.layout.parallel

    @cached_property
    def mean_pattern(self) -> Float[Tensor, "query key"]:
        """The paper has one head; on a model with several its alpha is their mean."""
        heads = len(self.block.raw_pattern)
        return paths.weighted_pattern(self.block.raw_pattern, self.block.norm1_scale.new_full((heads,), 1.0 / heads))

    @cached_property
    def scales(self) -> Float[Tensor, "query key"]:
        """rp1_i r1_j."""
        return self.block.post_norm1_scale[:, None] * self.block.norm1_scale

    @cached_property
    def weighted(self) -> Float[Tensor, "query key"]:
        """sum_h omega_h alpha_ij^h."""
        omega = operators.head_norms(self.block.weights.left, self.block.weights.right)
        return paths.weighted_pattern(self.block.raw_pattern, omega)

    @cached_property
    def head_sums(self) -> Float[Tensor, "query key"]:
        """|| sum_h alpha_ij^h B_h ||; of two bounds the smaller one."""
        weights = self.block.weights
        sums = edges.head_sum_norms(self.block.pattern, weights.left, weights.right, self._dense_norms)
        return torch.minimum(sums, self.weighted)

    @cached_property
    def self_norms(self) -> Float[Tensor, " pos"]:
        """||T_ii||: what attention leaves of a token and what it adds of it, together."""
        norms = [self._dense_norms(edges.with_identity(self.self_updates(part))) for part in self._parts]
        return torch.minimum(torch.cat(norms), 1.0 + (self.head_sums / self.scales).diagonal())

    def self_updates(self, part: slice) -> Float[Tensor, "part d_model d_model"]:
        """T_ii - I for the positions of `part`."""
        weights, scale = self.block.weights, self.scales.diagonal()
        return edges.self_updates(self.block.pattern, weights.left, weights.right, scale, part)

    @cached_property
    def whole_norms(self) -> Float[Tensor, " pos"]:
        """||D_i + T_ii||, a parallel block's own edge; ||D_i|| + ||T_ii|| where that is less, and where nothing knows D_i."""
        apart = self.mlp_norms + self.self_norms
        if self.mlp_norm in ("product", "frobenius"):
            return apart
        norms = torch.cat([self._dense_norms(self.rows(part) + self.self_updates(part)) for part in self._parts])
        return norms if self.mlp_norm == "svd" else torch.minimum(norms, apart)

    @cached_property
    def mlp_norms(self) -> Float[Tensor, " pos"]:
        """||D_i||: the MLP with the norms before and after it."""
        weights, block = self.block.weights, self.block
        bare = self._norms(weights.down, weights.gate, weights.up, block.p, block.q)
        return bare / (block.norm2_scale * block.post_norm2_scale)

    @cached_property
    def row_norms(self) -> Float[Tensor, " pos"]:
        """||I + D_i||; 1 + ||D_i|| where that is less, and under mlp_norm="product" or "frobenius", which know no D_i."""
        if self.mlp_norm in ("product", "frobenius"):
            return 1.0 + self.mlp_norms
        norms = torch.cat([self._dense_norms(self.rows(part)) for part in self._parts])
        # Of two certificates the larger may be that of the smaller norm; both are bounds.
        return norms if self.mlp_norm == "svd" else torch.minimum(norms, 1.0 + self.mlp_norms)

    def rows(self, part: slice) -> Float[Tensor, "part d_model d_model"]:
        """I + D_i for the positions of `part`."""
        weights, block = self.block.weights, self.block
        q = None if block.q is None else block.q[part]
        scale = (block.norm2_scale * block.post_norm2_scale)[part, None, None]
        return edges.with_identity(
            operators.mlp_jacobian(weights.down, weights.gate, weights.up, block.p[part], q) / scale
        )

    @property
    def _parts(self) -> list[slice]:
        """The positions, so many at a time that their inner MLP matrices, ff x d each, do not fill the memory."""
        gate = self.block.weights.gate
        return list(edges.chunks(len(self.block.norm1_scale), 4 * gate.numel() * gate.element_size()))

    @cached_property
    def sigma_psi(self) -> float:
        """max over positions of ||J_psi||, at this input: a gated MLP has no global Lipschitz constant."""
        weights, block = self.block.weights, self.block
        maps = weights.bare_down, weights.bare_gate, weights.bare_up
        bounds = self._norms(*maps, block.p, block.q)
        if self.mlp_norm != "certified":
            return float(bounds.max())
        # The paper's constant is no bound but a number: exact at the largest bound, then wherever a bound is above that.
        largest = torch.zeros_like(bounds[0])
        for _ in range(2):
            at = (bounds > largest).nonzero()[:, 0] if float(largest) else bounds.argmax()[None]
            if len(at):
                q = None if block.q is None else block.q[at]
                largest = torch.maximum(largest, operators.mlp_norms(*maps, block.p[at], q).max())
        return float(largest)

    @cached_property
    def beta_1(self) -> float:
        """min_j r1_j / ||g1||_inf."""
        return float(self.block.norm1_scale.min() / self.block.weights.gain_1)

    @cached_property
    def beta_2(self) -> float:
        """min_j r2_j / ||g2||_inf."""
        return float(self.block.norm2_scale.min() / self.block.weights.gain_2)

    @cached_property
    def live_attention(self) -> edges.LiveAttention:
        """Attention with nothing held, P_i W_O^h on its left; raises `InputError` where the pattern is not a softmax."""
        block, weights, scores = self.block, self.block.weights, self.block.scores
        heads = weights.bare_left.transpose(0, 1).flatten(1)[None]
        left = edges.after_norm(heads, weights.post_gain_1, block.post_norm1_direction, block.post_norm1_scale)
        return edges.LiveAttention(
            pattern=block.pattern,
            slope=scores.slope,
            left=left.unflatten(2, weights.bare_left.shape[::2]).transpose(1, 2),
            right=weights.right,
            query=scores.query,
            key=scores.key,
            value=scores.value,
            query_map=scores.query_map,
            key_map=scores.key_map,
            norm1_direction=block.norm1_direction,
            norm1_scale=block.norm1_scale,
            groups=len(weights.key),
        )

    @cached_property
    def live_omega(self) -> Float[Tensor, " head"]:
        """||gp1||_inf ||W_OV^h diag(g1)||: the gain stays outside, because a live post-norm projects between the two."""
        weights = self.block.weights
        return weights.post_gain_1.abs().max() * operators.head_norms(weights.bare_left, weights.right)

    @cached_property
    def live_mlp_norms(self) -> Float[Tensor, " pos"]:
        """||gp2||_inf ||J_psi diag(g2)|| / (rp2_i r2_i) >= ||D_i||, D_i with nothing held."""
        weights, block = self.block.weights, self.block
        bare = self._norms(weights.bare_down, weights.gate, weights.up, block.p, block.q)
        return weights.post_gain_2.abs().max() * bare / (block.norm2_scale * block.post_norm2_scale)

    @cached_property
    def live_rows(self) -> Float[Tensor, "pos d_model d_model"]:
        """I + D_i with nothing held: diag(gp2) / rp2_i N(mlp_i) J_psi diag(g2) / r2_i N(z_i)."""
        weights, block = self.block.weights, self.block
        inner = operators.mlp_jacobian(weights.bare_down, weights.gate, weights.up, block.p, block.q)
        after = edges.after_norm(inner, weights.post_gain_2, block.post_norm2_direction, block.post_norm2_scale)
        live = edges.projected(after, block.norm2_direction[:, None]) / block.norm2_scale[:, None, None]
        return edges.with_identity(live)
