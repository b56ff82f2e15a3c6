"""`cesaro`: the path sum of uniform causal attention, with the residual weight that each block has on the prompt."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ostools.measure.formulas.forward import Forward
from ostools.measure.paths.block_view import BlockView
from ostools.theory.path_sum.cesaro import cesaro_row, residual_weight


class CesaroFold:
    """lambda_l of every block, then the closed form. No pattern is read: a window, a sink or an edit of scores does not show.

    omega_l = ||sum_h B_h||_F / sqrt(d) mean_i(1 / rp1_i) mean_j(1 / r1_j), over the tokens up to the last one.
    """

    def __init__(self, run: Forward, last: list[int]) -> None:
        self.last, self.widest = last, len(run.final_norm_scale)
        self.weights: list[Float[Tensor, " last"]] = []

    def step(self, view: BlockView) -> None:
        weights, block = view.block.weights, view.block
        left, right = weights.left.transpose(0, 1).flatten(1).double(), weights.right.flatten(0, 1).double()
        # ||L R||_F^2 = <L^T L, R R^T>: never d x d
        squared = ((left.T @ left) * (right @ right.T)).sum().clamp_min(0.0)
        scale = _mean_inverse(block.post_norm1_scale) * _mean_inverse(block.norm1_scale)
        moved = (squared.sqrt() * scale)[self.last].tolist()
        self.weights.append(torch.tensor([residual_weight(value, len(left)) for value in moved], dtype=torch.float64))

    def values(self) -> Float[Tensor, "last pos"]:
        by_last = torch.stack(self.weights, dim=1).tolist()
        rows = torch.zeros(len(self.last), self.widest, dtype=torch.float64)
        for index, (m, weights) in enumerate(zip(self.last, by_last, strict=True)):
            rows[index, : m + 1] = cesaro_row(weights, m + 1)
        return rows


def _mean_inverse(scale: Float[Tensor, " pos"]) -> Float[Tensor, " pos"]:
    """The mean of 1 / r over the tokens up to each one."""
    return (1.0 / scale.double()).cumsum(0) / torch.arange(1, len(scale) + 1, device=scale.device)
