"""Small-core shortcuts against dense matrices."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ostools.ground.out_of_memory import smaller_chunks
from ostools.theory import path_sum as operators

CASES = st.tuples(st.integers(1, 3), st.integers(2, 9), st.integers(1, 6), st.integers(0, 10_000), st.booleans())


def heads(head: int, d_model: int, d_head: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    left = torch.randn(head, d_model, d_head, generator=generator, dtype=torch.float64)
    return left, torch.randn(head, d_head, d_model, generator=generator, dtype=torch.float64)


@given(CASES)
def test_head_norms(case: tuple[int, int, int, int, bool]) -> None:
    head, d_model, d_head, seed, _ = case
    left, right = heads(head, d_model, d_head, seed)
    dense = left @ right
    torch.testing.assert_close(operators.head_norms(left, right), torch.linalg.matrix_norm(dense, ord=2))


@given(CASES)
def test_mlp_jacobian_is_the_derivative_of_the_mlp(case: tuple[int, int, int, int, bool]) -> None:
    positions, d_model, d_mlp, seed, gated = case
    generator = torch.Generator().manual_seed(seed)
    down = torch.randn(d_model, d_mlp, generator=generator, dtype=torch.float64)
    gate, up = (torch.randn(d_mlp, d_model, generator=generator, dtype=torch.float64) for _ in range(2))
    x = torch.randn(positions, d_model, generator=generator, dtype=torch.float64)

    def mlp(v: Tensor) -> Tensor:
        hidden = torch.nn.functional.silu(gate @ v)
        return down @ (hidden * (up @ v) if gated else hidden)

    a, u = (x @ gate.T).requires_grad_(True), x @ up.T
    value = torch.nn.functional.silu(a)
    (slope,) = torch.autograd.grad(value.sum(), a)
    p, q = (slope * u, value.detach()) if gated else (slope, None)
    arguments = (down, gate, up if gated else None, p, q)
    measured = torch.stack([_jacobian(mlp, v) for v in x])

    torch.testing.assert_close(operators.mlp_jacobian(*arguments), measured)
    norms = torch.linalg.matrix_norm(measured, ord=2)
    with smaller_chunks(1e-9):  # one position at a time
        torch.testing.assert_close(operators.mlp_norms(*arguments), norms)
    assert bool((operators.mlp_norm_products(*arguments) >= norms * (1 - 1e-12)).all())


@pytest.mark.parametrize("shape", [(3, 5, 8), (3, 8, 5), (1, 1, 1), (2, 3, 4, 4)])
@pytest.mark.parametrize("size", [1.0, 1e-250, 1e150])
def test_spectral_norms_are_the_largest_singular_values(shape: tuple[int, ...], size: float) -> None:
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = torch.linalg.matrix_norm(matrices, ord=2)
    torch.testing.assert_close(operators.spectral_norms(size * matrices) / size, expected, rtol=1e-9, atol=0)


def _jacobian(function, at: Tensor) -> Tensor:
    jacobian = torch.autograd.functional.jacobian(function, at)
    assert isinstance(jacobian, Tensor)
    return jacobian
