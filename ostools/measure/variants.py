"""The forms of the path sum, by name: how each reads one block, and what it multiplies the product with.

A variant walks the blocks from the last to the first, so that one block's weights are in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from ostools.measure.block_view import BlockView
from ostools.measure.forward import Forward
from ostools.measure.predicted import KernelFold
from ostools.measure.weights import final_gain
from ostools.theory import paths

MlpNorm = Literal["svd", "product"]
Kind = Literal["certified", "paper", "predicted"]
Norm = Literal["operator", "frobenius"]


class PathFold(Protocol):
    """A path sum in the making: fed the blocks from the last to the first, then asked for its values.

    A row is one last position: only n - 1 for `positions="last"`, every position for `positions="all"`.
    """

    def step(self, view: BlockView) -> None: ...

    def values(self) -> Float[Tensor, "last pos"]: ...


@dataclass
class RowFold:
    """constant * ( Abar^(L-1) ... Abar^(0) )_{m,:} for the last positions m, with Abar from `edges` and the constant from
    numbers of each block."""

    run: Forward
    last: list[int]
    edges: Callable[[BlockView], Float[Tensor, "query key"]]
    numbers: Callable[[BlockView], tuple[float, ...]]
    constant: Callable[[list[tuple[float, ...]], float], float]

    def __post_init__(self) -> None:
        scale = self.run.final_norm_scale
        self.rows = torch.eye(len(scale), dtype=torch.float64, device=scale.device)[self.last]
        self.kept: list[tuple[float, ...]] = []

    def step(self, view: BlockView) -> None:
        self.rows = self.rows @ self.edges(view)
        self.kept.append(self.numbers(view))

    def values(self) -> Float[Tensor, "last pos"]:
        """beta_3 = r3_m / ||g3||_inf, of each last position m."""
        beta_3 = self.run.final_norm_scale[self.last] / final_gain(self.run.model).abs().max()
        constants = [self.constant(self.kept, float(beta)) for beta in beta_3]
        return torch.tensor(constants, dtype=self.rows.dtype, device=self.rows.device)[:, None] * self.rows


@dataclass(frozen=True)
class Variant:
    """A form of the path sum: what kind of number it gives, and which measured norm of which derivative it stands beside.

    `scaled` is False where the constant in front is unknown, so that only the shape (the ranks) can be compared.
    """

    name: str
    kind: Kind
    norm: Norm
    scaled: bool
    fold: Callable[[Forward, list[int]], PathFold]
    linearisation: Literal["full", "frozen"] = "frozen"


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
    return Variant(name, kind, norm, constant is not None, lambda run, last: RowFold(run, last, edges, numbers, front))


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
