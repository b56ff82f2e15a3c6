"""The path sums that predict: second moments carried from the final norm down to the embeddings."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ostools.measure.block_view import BlockView
from ostools.measure.forward import Forward
from ostools.measure.weights import final_norm_squared
from ostools.theory import operators, second_moment


@dataclass
class KernelFold:
    """sqrt of the diagonal of the second-moment kernel, carried from the final norm down to the embeddings."""

    run: Forward
    last: list[int]

    def __post_init__(self) -> None:
        scale = self.run.final_norm_scale
        squared = final_norm_squared(self.run.model)
        self.kernels = [second_moment.top_kernel(len(scale), squared / scale[m] ** 2, m) for m in self.last]

    def step(self, view: BlockView) -> None:
        block, weights = view.block, view.block.weights
        d_model = weights.down.shape[0]
        mlp = (weights.down, weights.gate, weights.up, block.p, block.q)
        scale = block.norm2_scale * block.post_norm2_scale
        trace = operators.mlp_traces(*mlp) / scale
        inner = operators.mlp_inner_products(*mlp) / (scale[:, None] * scale[None, :])
        overlap = second_moment.mlp_overlap(trace, inner, d_model)
        traces = operators.head_traces(weights.left, weights.right) / d_model
        gram = operators.head_gram(weights.left, weights.right) / d_model
        scales = (block.norm1_scale, block.post_norm1_scale)
        self.kernels = [
            second_moment.through_attention(
                second_moment.through_mlp(kernel, overlap), block.pattern, *scales, traces, gram
            )
            for kernel in self.kernels
        ]

    def values(self) -> Float[Tensor, "last pos"]:
        return torch.stack([second_moment.frobenius_norms(kernel) for kernel in self.kernels])
