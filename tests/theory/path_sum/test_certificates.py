"""Certified norms lie above the exact ones and within 0.1% of them, on matrices made to break the proof."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ostools.theory.path_sum import certificates, operators
from ostools.theory.path_sum.certificates import certified_norms


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def within(matrices: Tensor, exact: Tensor) -> None:
    bounds = certified_norms(matrices)
    assert (bounds >= exact).all(), (bounds - exact).min()
    assert (bounds <= exact * 1.001).all(), (bounds / exact).max()


@given(
    st.integers(1, 24), st.integers(1, 24), st.integers(0, 10_000), st.sampled_from([0, 1, 6]), st.integers(-300, 300)
)
def test_random_matrices_of_every_shape_decay_and_size(
    rows: int, cols: int, seed: int, decay: int, digits: int
) -> None:
    matrices = normal(3, rows, cols, seed=seed) * torch.logspace(0, -decay, cols, dtype=torch.float64)
    exact = torch.tensor([_exact(matrix) for matrix in matrices], dtype=torch.float64)
    # The scale is a power of two, so that the exact norm scales exactly.
    scale = 2.0 ** int(digits * 3)
    within(matrices * scale, exact * (1 - 1e-15) * scale)


def _exact(matrix: Tensor) -> float:
    with mpmath.workdps(40):
        found = mpmath.svd_r(mpmath.matrix(matrix.tolist()), compute_uv=False)
        return float(found[0])


def test_equal_singular_values_rank_one_zero_and_what_is_not_finite() -> None:
    orthogonal = torch.linalg.qr(normal(4, 60, 60)).Q
    within(3.0 * orthogonal, torch.full((4,), 3.0 * (1 - 1e-14), dtype=torch.float64))
    near = orthogonal * torch.cat([torch.tensor([1.0, 1 - 1e-9, 0.9999]), torch.full((57,), 0.9995)]).double()
    within(near, torch.full((4,), 1 - 1e-14, dtype=torch.float64))
    left, right = normal(4, 60, 1), normal(4, 1, 50, seed=1)
    within(left @ right, (left.norm(dim=(1, 2)) * right.norm(dim=(1, 2))) * (1 - 1e-14))
    assert certified_norms(torch.zeros(2, 5, 5, dtype=torch.float64)).tolist() == [0.0, 0.0]
    broken = torch.ones(2, 5, 5, dtype=torch.float64)
    broken[0, 1, 1], broken[1, 2, 2] = torch.inf, torch.nan
    assert not torch.isfinite(certified_norms(broken)).any()


def test_how_each_norm_was_proved_is_counted() -> None:
    tally: Counter[str] = Counter()
    certified_norms(normal(5, 30, 30), tally)
    assert sum(tally.values()) == 5
    assert set(tally) <= set(certificates.OUTCOMES)


def test_a_start_that_misses_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanczos steps that see half of the norm: the factorisation says so, and eigenvalues take over."""
    matrices = normal(6, 20, 20)
    exact, honest = torch.linalg.matrix_norm(matrices, ord=2), certificates.lanczos
    monkeypatch.setattr(certificates, "lanczos", lambda gram, steps: honest(gram, steps) / 4)
    tally: Counter[str] = Counter()
    assert (certified_norms(matrices, tally) >= exact * (1 - 1e-14)).all()
    assert tally["by eigenvalues"] == 6
    monkeypatch.setattr(certificates, "_largest", lambda gram: gram[:, 0, 0] * 0)
    monkeypatch.setattr(certificates, "lanczos", lambda gram, steps: gram[:, 0, 0] * 0)
    tally.clear()
    frobenius = torch.linalg.matrix_norm(matrices, ord="fro")
    torch.testing.assert_close(certified_norms(matrices, tally), frobenius, rtol=1e-9, atol=0)
    assert tally["frobenius"] == 6


def factorised(gram: Tensor, mu: float, formed: float = 0.0) -> tuple[float, bool]:
    bounds, holds = certificates._factorised(
        gram[None], torch.tensor([mu], dtype=gram.dtype), torch.tensor([formed], dtype=gram.dtype)
    )
    return float(bounds[0]), bool(holds[0])


def test_success_of_the_factorisation_is_demanded() -> None:
    assert factorised(torch.eye(3, dtype=torch.float64) * 2.0, 1.0)[1] is False
    assert factorised(torch.eye(3, dtype=torch.float64) * 2.0, 2.1)[1] is True


def test_each_term_of_the_proof_is_in_the_bound() -> None:
    """At its size from the definition, u = 2^-53; in 200 dimensions the backward error is 200 times what else is added."""
    u, k = 2.0**-53, 200
    gram = torch.eye(k, dtype=torch.float64) / 4
    share = (k + 1) * u / (1 - (k + 1) * u)
    proved, _ = factorised(gram, 2.0)
    with mpmath.workdps(50):
        least = mpmath.mpf(2) + mpmath.mpf(share) / (1 - share) * k * mpmath.mpf(1.75) + u * mpmath.mpf(1.75)
    assert least <= proved <= 2.0 + 1.01 * float(least - 2)
    big, _ = factorised(gram, 2.0, formed=1e-3)
    assert big >= 2.001
    unit = normal(1, 4, 50) / 8
    formed = certificates._formed(unit, unit @ unit.mT)
    assert float(formed[0]) >= 50 * u / (1 - 50 * u) * float(unit.square().sum())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_in_low_precision_is_covered(dtype: torch.dtype) -> None:
    """One direction in every entry, 4096 long: float32 sums lose most, the exact norm is that of the numbers handed in."""
    matrices = (torch.rand(3, 4, 4096, generator=torch.Generator().manual_seed(1)) + 0.5).to(dtype)
    exact = torch.linalg.matrix_norm(matrices.double(), ord=2)
    bounds = certified_norms(matrices)
    assert (bounds >= exact * (1 - 1e-15)).all()


NORMS: list[Callable[..., Tensor]] = [operators.mlp_frobenius_norms, operators.mlp_norm_products]


@given(st.integers(1, 4), st.integers(2, 9), st.integers(1, 12), st.integers(0, 10_000), st.booleans())
def test_frobenius_norms_of_the_mlp(pos: int, d_model: int, d_mlp: int, seed: int, gated: bool) -> None:
    down, gate, up = normal(d_model, d_mlp, seed=seed), normal(d_mlp, d_model, seed=seed + 1), normal(d_mlp, d_model)
    p, q = normal(pos, d_mlp, seed=seed + 2), normal(pos, d_mlp, seed=seed + 3)
    parts = (down, gate, up if gated else None, p, q if gated else None)
    dense = operators.mlp_jacobian(*parts)
    exact = dense.square().sum((1, 2)).sqrt()
    found = operators.mlp_frobenius_norms(*parts)
    torch.testing.assert_close(found, exact, rtol=1e-6, atol=1e-6)
    assert (found >= exact * (1 - 1e-14)).all()
    assert (found >= torch.linalg.matrix_norm(dense, ord=2) * (1 - 1e-14)).all()


def test_frobenius_norm_of_an_mlp_that_cancels() -> None:
    """gate and up cancel in D to rounding: what is left is still bounded."""
    down, gate, p = normal(6, 9), normal(9, 6, seed=1), normal(3, 9, seed=2)
    parts = (down, gate, -gate * (1 + 1e-9), p, p)
    exact = torch.linalg.matrix_norm(operators.mlp_jacobian(*parts), ord="fro")
    assert (operators.mlp_frobenius_norms(*parts) >= exact).all()
