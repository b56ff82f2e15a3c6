"""The predicting path sum: exact for scalar operators, exact in mean under a random rotation."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ostools.theory import paths, second_moment
from tests.theory.test_paths import patterns

ONE = torch.tensor(1.0, dtype=torch.float64)


@given(st.integers(1, 4), st.integers(1, 6), st.integers(0, 10_000))
def test_exact_where_every_operator_is_a_multiple_of_the_identity(layers: int, n: int, seed: int) -> None:
    """B_h = b_h I, D_j = c_j I, J_i = scalar_i I: predicted ||J_i||_F = sqrt(d) |scalar_i|, signs and all."""
    generator = torch.Generator().manual_seed(seed)
    d_model, head = 5, 2
    kernel = second_moment.top_kernel(n, d_model * ONE)
    scalars = torch.eye(n, dtype=torch.float64)[-1]
    for layer in reversed(range(layers)):
        pattern = torch.stack(patterns(head, n, seed + layer))
        b, c, r1, rp1 = (torch.randn(k, generator=generator, dtype=torch.float64) for k in (head, n, n, n))
        r1, rp1 = r1.abs() + 0.2, rp1.abs() + 0.2
        overlap = second_moment.mlp_overlap(d_model * c, d_model * c[:, None] * c[None, :], d_model)
        kernel = second_moment.through_mlp(kernel, overlap)
        kernel = second_moment.through_attention(kernel, pattern, r1, rp1, b, b[:, None] * b[None, :])
        edge = (1 + c)[:, None] * paths.with_skip(torch.einsum("h,hqk->qk", b, pattern) / rp1[:, None] / r1[None, :])
        scalars = scalars @ edge
    torch.testing.assert_close(
        second_moment.frobenius_norms(kernel), d_model**0.5 * scalars.abs(), rtol=1e-6, atol=1e-6
    )


def test_mean_over_random_rotations_is_the_formula() -> None:
    """One block: B_h -> Q B_h Q^T, D_j -> Q D_j Q^T for Haar-random Q; the mean of ||J_i||_F^2 is K_ii."""
    generator = torch.Generator().manual_seed(0)
    d_model, head, n, draws = 6, 2, 4, 4000
    pattern = torch.stack(patterns(head, n, 5))
    b = torch.randn(head, d_model, d_model, generator=generator, dtype=torch.float64)
    mlp = 0.5 * torch.randn(n, d_model, d_model, generator=generator, dtype=torch.float64)
    top = torch.randn(d_model, d_model, generator=generator, dtype=torch.float64)
    r1, rp1 = (0.5 + torch.rand(n, generator=generator, dtype=torch.float64) for _ in range(2))

    overlap = second_moment.mlp_overlap(torch.einsum("ndd->n", mlp), torch.einsum("nde,mde->nm", mlp, mlp), d_model)
    kernel = second_moment.through_mlp(second_moment.top_kernel(n, top.square().sum()), overlap)
    traces = torch.einsum("hdd->h", b) / d_model
    gram = torch.einsum("hde,kde->hk", b, b) / d_model
    kernel = second_moment.through_attention(kernel, pattern, r1, rp1, traces, gram)

    squares = torch.stack([_rotated_squares(top, b, mlp, pattern, r1, rp1, generator) for _ in range(draws)])
    error = squares.std(0) / draws**0.5
    assert bool(((squares.mean(0) - kernel.diagonal()).abs() <= 4.5 * error).all())


def _rotated_squares(
    top: Tensor, b: Tensor, mlp: Tensor, pattern: Tensor, r1: Tensor, rp1: Tensor, generator: torch.Generator
) -> Tensor:
    """||J_i||_F^2 of one block, attention and MLP seen through independent Haar rotations."""
    eye = torch.eye(top.shape[0], dtype=torch.float64)
    q_attention, q_mlp = _haar(top.shape[0], generator), _haar(top.shape[0], generator)
    above = top @ (eye + q_mlp @ mlp[-1] @ q_mlp.T)
    turned = q_attention @ b @ q_attention.T
    n = pattern.shape[-1]
    weights = pattern[:, -1] / rp1[-1] / r1
    jacobians = [above @ (torch.einsum("h,hde->de", weights[:, i], turned) + eye * (i == n - 1)) for i in range(n)]
    return torch.stack([jacobian.square().sum() for jacobian in jacobians])


def _haar(d: int, generator: torch.Generator) -> Tensor:
    q, r = torch.linalg.qr(torch.randn(d, d, generator=generator, dtype=torch.float64))
    return q * r.diagonal().sign()


@given(st.integers(2, 6), st.integers(0, 10_000))
def test_kernel_stays_positive_semidefinite(n: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    d_model, head = 4, 3
    b = torch.randn(head, d_model, d_model, generator=generator, dtype=torch.float64)
    kernel = second_moment.top_kernel(n, ONE)
    for layer in range(3):
        kernel = second_moment.through_attention(
            kernel,
            torch.stack(patterns(head, n, seed + layer)),
            torch.ones(n, dtype=torch.float64),
            torch.ones(n, dtype=torch.float64),
            torch.einsum("hdd->h", b) / d_model,
            torch.einsum("hde,kde->hk", b, b) / d_model,
        )
    values = torch.linalg.eigvalsh(kernel)
    assert float(values.min()) >= -1e-9 * float(values.max())
