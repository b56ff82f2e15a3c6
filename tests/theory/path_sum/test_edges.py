"""Edges against dense matrices: sums over heads by singular values."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ostools.theory import path_sum as edges

N, HEADS, D_HEAD = 6, 4, 4


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def close(found: Tensor, expected: Tensor) -> None:
    """Equal up to 1e-9 of the largest entry; an all-zero expectation would prove nothing."""
    assert found.shape == expected.shape
    assert float(expected.abs().max()) > 0
    assert float((found - expected).abs().max()) <= 1e-9 * float(expected.abs().max())


def causal(seed: int) -> Tensor:
    return torch.softmax(randn(HEADS, N, N, seed=seed).masked_fill(~torch.ones(N, N).tril().bool(), -torch.inf), -1)


@pytest.mark.parametrize("shape", [(3, 5, 8), (3, 8, 5), (1, 1, 1), (2, 3, 4, 4)])
def test_spectral_norms_are_the_largest_singular_values(shape: tuple[int, ...]) -> None:
    for size in (1.0, 1e-250, 1e150):
        matrices = size * randn(*shape)
        close(edges.spectral_norms(matrices) / size, torch.linalg.matrix_norm(matrices, ord=2) / size)
