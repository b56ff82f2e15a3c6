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
    """float32 where that is enough; float64 for long sums of one sign, where float32 loses more than 0.1%."""
    tally: Counter[str] = Counter()
    certified_norms(normal(5, 30, 30), tally)
    assert dict(tally) == {"float32": 5, "float64": 0, "beyond 0.1%": 0}
    tally.clear()
    certified_norms(torch.linalg.qr(normal(2, 400, 400)).Q, tally)
    assert dict(tally) == {"float32": 0, "float64": 2, "beyond 0.1%": 0}


def test_what_cannot_be_proved_within_the_tolerance_is_still_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one product only, nothing is known but that the Frobenius norm bounds it."""
    monkeypatch.setattr(certificates, "SQUARINGS", {torch.float32: 1, torch.float64: 1})
    matrices = normal(6, 20, 20)
    tally: Counter[str] = Counter()
    found = certified_norms(matrices, tally)
    torch.testing.assert_close(found, torch.linalg.matrix_norm(matrices, ord="fro"), rtol=1e-3, atol=0)
    assert (found >= torch.linalg.matrix_norm(matrices, ord=2)).all()
    assert dict(tally) == {"float32": 0, "float64": 0, "beyond 0.1%": 6}


def test_a_start_that_misses_the_largest_direction_is_found_out() -> None:
    """The largest diagonal entry lies in one block, the largest norm in the other, at right angles to it."""
    matrices = torch.zeros(1, 12, 12, dtype=torch.float64)
    matrices[0, 0, 0] = 1.0
    matrices[0, 2:, 2:] = 1.03 / 10
    within(matrices, torch.tensor([1.03], dtype=torch.float64) * (1 - 1e-14))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(st.integers(2, 12), st.integers(0, 10_000), st.integers(0, 4))
def test_both_sides_hold_at_every_squaring(dtype: torch.dtype, k: int, seed: int, decay: int) -> None:
    """The bounds after 1 to 9 products, below and above the exact norm; they close in."""
    matrices = normal(2, k, k + 3, seed=seed) * torch.logspace(0, -decay, k + 3, dtype=torch.float64)
    unit = matrices / matrices.abs().amax((1, 2), keepdim=True)
    unit = unit.to(dtype)
    exact = torch.tensor([_exact(matrix) for matrix in unit], dtype=torch.float64)
    power, divisors, below, above = unit, [], exact, exact
    for _ in range(9):
        power, divisors = certificates._squared(power, divisors)
        below, above = certificates._sides(power, divisors, k + 3)
        assert (below <= exact).all()
        assert (exact <= above).all()
    assert (above / below - 1 < (1e-3 if dtype == torch.float64 else 3e-3)).all()


def test_each_loss_is_in_the_bound() -> None:
    """What a sum of k products may lose, at its size from the definition: u = 2^-24, twice gamma_(k + 8) a product."""
    k, columns = 4, 4096
    unit = torch.full((1, k, columns), 0.75)
    divisor = torch.tensor([k * columns * 0.75**2], dtype=torch.float64)
    product = torch.full((1, k, k), 1.0 / k)
    one = torch.ones(1, dtype=torch.float64)
    below, above = certificates._sides(product @ product, [divisor, one], columns)
    u = 2.0**-24
    least = 2 * columns * u / (1 - columns * u) / 2  # of ||P||, and half of that of its root
    exact = float(torch.linalg.matrix_norm(unit.double(), ord=2))
    assert float(above) >= exact * (1 + 0.9 * least)
    assert float(below) <= exact * (1 - 0.9 * least)
    assert float(above / below) < 1 + 4 * least


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


def test_what_is_beyond_float32_and_what_is_empty() -> None:
    """A sum too long for float32, of which float64 proves the norm; subnormal numbers; no matrix and one without entries."""
    long = torch.ones(1, 1, 20_000_000)
    within(long, torch.tensor([20_000_000**0.5 * (1 - 1e-15)], dtype=torch.float64))
    tiny = torch.full((1, 1, 2), 5e-324, dtype=torch.float64)
    assert float(certified_norms(tiny)[0]) > 5e-324  # of 7e-324, which lies between two numbers
    assert certified_norms(torch.zeros(0, 3, 3)).tolist() == []
    assert certified_norms(torch.zeros(2, 0, 3)).tolist() == [0.0, 0.0]
