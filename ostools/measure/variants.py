"""The forms of the path sum, by name: how each reads one block, and what it multiplies the product with.

A variant walks the blocks from the last to the first, so that one block's weights are in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from ostools.measure.forward import Block, Forward
from ostools.measure.weights import final_gain, final_norm_squared
from ostools.theory import operators, paths, second_moment

MlpNorm = Literal["svd", "product"]
Kind = Literal["certified", "paper", "predicted"]
Norm = Literal["operator", "frobenius"]


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


class PathFold(Protocol):
    """A path sum in the making: fed the blocks from the last to the first, then asked for its values."""

    def step(self, view: BlockView) -> None: ...

    def values(self) -> Float[Tensor, " pos"]: ...


@dataclass
class RowFold:
    """constant * ( Abar^(L-1) ... Abar^(0) )_{n,:}, with Abar from `edges` and the constant from numbers of each block."""

    run: Forward
    edges: Callable[[BlockView], Float[Tensor, "query key"]]
    numbers: Callable[[BlockView], tuple[float, ...]]
    constant: Callable[[list[tuple[float, ...]], float], float]

    def __post_init__(self) -> None:
        self.row = torch.eye(
            len(self.run.final_norm_scale), dtype=torch.float64, device=self.run.final_norm_scale.device
        )[-1]
        self.kept: list[tuple[float, ...]] = []

    def step(self, view: BlockView) -> None:
        self.row = self.row @ self.edges(view)
        self.kept.append(self.numbers(view))

    def values(self) -> Float[Tensor, " pos"]:
        """beta_3 = r3_n / ||g3||_inf, of the last position."""
        beta_3 = float(self.run.final_norm_scale[-1] / final_gain(self.run.model).abs().max())
        return self.constant(self.kept, beta_3) * self.row


@dataclass
class KernelFold:
    """sqrt of the diagonal of the second-moment kernel, carried from the final norm down to the embeddings."""

    run: Forward

    def __post_init__(self) -> None:
        scale = self.run.final_norm_scale
        self.kernel = second_moment.top_kernel(len(scale), final_norm_squared(self.run.model) / scale[-1] ** 2)

    def step(self, view: BlockView) -> None:
        block, weights = view.block, view.block.weights
        d_model = weights.down.shape[0]
        mlp = (weights.down, weights.gate, weights.up, block.p, block.q)
        scale = block.norm2_scale * block.post_norm2_scale
        trace = operators.mlp_traces(*mlp) / scale
        inner = operators.mlp_inner_products(*mlp) / (scale[:, None] * scale[None, :])
        self.kernel = second_moment.through_attention(
            second_moment.through_mlp(self.kernel, second_moment.mlp_overlap(trace, inner, d_model)),
            block.pattern,
            block.norm1_scale,
            block.post_norm1_scale,
            operators.head_traces(weights.left, weights.right) / d_model,
            operators.head_gram(weights.left, weights.right) / d_model,
        )

    def values(self) -> Float[Tensor, " pos"]:
        return second_moment.frobenius_norms(self.kernel)


@dataclass(frozen=True)
class Variant:
    """A form of the path sum: what kind of number it gives, and which measured norm it stands beside.

    `scaled` is False where the constant in front is unknown, so that only the shape (the ranks) can be compared.
    """

    name: str
    kind: Kind
    norm: Norm
    scaled: bool
    fold: Callable[[Forward], PathFold]


def _nothing(view: BlockView) -> tuple[float, ...]:
    return ()


def _rows(
    name: str,
    kind: Kind,
    edges: Callable[[BlockView], Float[Tensor, "query key"]],
    numbers: Callable[[BlockView], tuple[float, ...]] = _nothing,
    constant: Callable[[list[tuple[float, ...]], float], float] | None = None,
) -> Variant:
    """A variant that is one row of a product; without a constant it has a shape only."""
    norm: Norm = "frobenius" if kind == "predicted" else "operator"
    front = constant or (lambda numbers, beta_3: 1.0)
    return Variant(name, kind, norm, constant is not None, lambda run: RowFold(run, edges, numbers, front))


def _certified(name: str, edges: Callable[..., Float[Tensor, "query key"]]) -> Variant:
    """( row ) ||g3||_inf / r3_n, each block with its own scales and norms."""

    def of_block(view: BlockView) -> Float[Tensor, "query key"]:
        return edges(view.weighted, view.block.norm1_scale, view.block.post_norm1_scale, view.mlp_norms)

    return _rows(name, "certified", of_block, constant=lambda numbers, beta_3: 1.0 / beta_3)


VARIANTS: dict[str, Variant] = {
    variant.name: variant
    for variant in (
        _rows("theorem-5.1", "paper", lambda view: paths.theorem_51_edges(view.mean_pattern, view.beta_2)),
        _rows(
            "theorem-b5",
            "paper",
            lambda view: paths.theorem_b5_edges(view.mean_pattern, view.beta_1),
            lambda view: (view.sigma_psi,),
            lambda numbers, beta_3: max(sigma for (sigma,) in numbers) ** len(numbers),
        ),
        _rows(
            "proof",
            "paper",
            lambda view: paths.proof_edges(view.mean_pattern, view.beta_1),
            lambda view: (view.sigma_psi, view.beta_2),
            lambda numbers, beta_3: paths.proof_constant(
                max(sigma for sigma, _ in numbers), [beta_2 for _, beta_2 in numbers], beta_3
            ),
        ),
        _rows("multi-head", "paper", lambda view: paths.multi_head_edges(view.block.pattern)),
        _certified("uniform", paths.uniform_edges),
        _certified("local", paths.local_edges),
        Variant("second-moment", "predicted", "frobenius", True, KernelFold),
        _rows("rollout", "predicted", lambda view: paths.rollout_edges(view.mean_pattern)),
    )
}
