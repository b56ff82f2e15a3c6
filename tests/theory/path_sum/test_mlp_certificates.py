"""Certified norms of MLP Jacobians lie above the exact ones and within 0.1% of them, on weights made to break the proof."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ostools.theory.path_sum import mlp_certificates, operators
from ostools.theory.path_sum.certificates import gamma
from ostools.theory.path_sum.mlp_certificates import QUOTIENT, certified_mlp_norms

D, FF = 48, 64
Parts = tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor | None]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def drawn(seed: int, gated: bool, pos: int = 4, decay: float = 1.0) -> Parts:
    down = normal(D, FF, seed=seed) * torch.logspace(0, -decay, D, dtype=torch.float64)[:, None]
    up, q = (normal(FF, D, seed=seed + 2), normal(pos, FF, seed=seed + 3)) if gated else (None, None)
    return down, normal(FF, D, seed=seed + 1), up, normal(pos, FF, seed=seed + 4), q


def diagonal(values: Tensor) -> Parts:
    """Jacobians X diag(values) Y with X and Y orthogonal: their singular values are known."""
    size = values.shape[1]
    x, y = torch.linalg.qr(normal(size, size, seed=1)).Q, torch.linalg.qr(normal(size, size, seed=2)).Q
    return x, y, None, values, None


def exact(parts: Parts) -> Tensor:
    return torch.linalg.matrix_norm(operators.mlp_jacobian(*parts), ord=2)


def within(parts: Parts, norms: Tensor) -> Counter[str]:
    tally: Counter[str] = Counter()
    bounds = certified_mlp_norms(*parts, tally)
    assert (bounds >= norms * (1 - 1e-13)).all(), (bounds / norms).min()
    assert (bounds <= norms * 1.001 * (1 + 1e-13)).all(), (bounds / norms).max()
    assert sum(tally.values()) == len(norms)
    return tally


@given(st.integers(0, 10_000), st.booleans(), st.sampled_from([0.0, 1.0, 5.0]), st.integers(-90, 90))
def test_random_weights_of_every_decay_and_size(seed: int, gated: bool, decay: float, digits: int) -> None:
    """Powers of two scale the exact norm exactly."""
    down, gate, up, p, q = drawn(seed, gated, decay=decay)
    norms = exact((down, gate, up, p, q))
    factor = 2.0 ** (3 * digits)
    within((down * factor, gate, up, p / 8.0**20, None if q is None else q / 8.0**20), norms * factor / 8.0**20)


@pytest.mark.parametrize("gated", [True, False])
def test_most_norms_need_no_squaring(gated: bool) -> None:
    parts = drawn(0, gated, pos=40)
    assert within(parts, exact(parts))[QUOTIENT] >= 30


def test_what_is_proved_by_one_direction_is_far_within_the_tolerance() -> None:
    parts = drawn(3, True)
    assert float((certified_mlp_norms(*parts) / exact(parts) - 1).min()) < 1e-6


@pytest.mark.parametrize("gap", [0.0, 1e-12, 1e-7, 1e-4, 1e-3, 1e-2, 0.1, 0.5])
def test_a_top_pair_however_near(gap: float) -> None:
    values = torch.linspace(0.6, 0.1, D, dtype=torch.float64).repeat(3, 1)
    values[:, 7], values[:, 30] = 1.0, 1.0 - gap
    tally = within(diagonal(values), torch.ones(3, dtype=torch.float64))
    assert tally[QUOTIENT] == (3 if gap >= 0.1 else tally[QUOTIENT])


@pytest.mark.parametrize("equal", [2, 5, 13, D])
def test_many_equal_singular_values_are_left_to_squaring(equal: int) -> None:
    values = torch.full((2, D), 0.5, dtype=torch.float64)
    values[:, :equal] = 1.0
    tally = within(diagonal(values), torch.ones(2, dtype=torch.float64))
    assert tally[QUOTIENT] == 0


def test_rank_one_zero_and_mixed_positions() -> None:
    """Every position on its own: what one cannot prove changes no other."""
    values = torch.zeros(5, D, dtype=torch.float64)
    values[0, 3] = -2.5
    values[2] = torch.linspace(1.0, 0.0, D, dtype=torch.float64)
    values[3, :2] = 1e-200
    values[4] = torch.logspace(0, -300, D, dtype=torch.float64)
    norms = torch.tensor([2.5, 0.0, 1.0, 1e-200, 1.0], dtype=torch.float64)
    within(diagonal(values), norms)
    assert float(certified_mlp_norms(*diagonal(values))[1]) == 0.0


@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_stays_so_and_spoils_no_other(broken: float) -> None:
    down, gate, up, p, q = drawn(0, True, pos=6)
    norms = exact((down, gate, up, p, q))
    p[2, 5] = broken
    found = certified_mlp_norms(down, gate, up, p, q)
    assert torch.isfinite(found).tolist() == [True, True, False, True, True, True]
    others = torch.tensor([0, 1, 3, 4, 5])
    assert (found[others] >= norms[others]).all()
    assert (found[others] <= norms[others] * 1.001).all()
    down[0, 0] = broken
    assert not torch.isfinite(certified_mlp_norms(down, gate, up, p, q)).any()


def test_a_start_at_right_angles_to_the_largest_direction_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows see everything but the largest direction: nothing may be proved of what they find."""
    values = torch.linspace(0.9, 0.1, D, dtype=torch.float64).repeat(2, 1)
    values[:, 0] = 1.0
    parts = diagonal(values)

    def blind(self: mlp_certificates._Factors, power: Tensor, trace: Tensor) -> Tensor:
        return parts[0].mT[1 : mlp_certificates.FEW + 1].float().expand(len(power), -1, -1)

    monkeypatch.setattr(mlp_certificates._Factors, "basis", blind)
    tally = within(parts, torch.ones(2, dtype=torch.float64))
    assert tally[QUOTIENT] == 0


@pytest.mark.parametrize("small", [1e-10, 3e-11, 1e-11, 6e-12, 1e-14])
def test_what_the_rows_do_not_see_counts_however_small_it_is(small: float) -> None:
    """The largest direction is at right angles to the first rows. A dead unit sets the scale: squares of entries of P are below
    what float32 holds."""
    rows = operators.orthogonal_probes(D, mlp_certificates.FEW, 0, torch.zeros(1))
    start = torch.linalg.qr(rows.double()).Q
    unseen = torch.linalg.qr(torch.cat([start, normal(D, 1, seed=3)], 1)).Q[:, -1:]
    down = torch.cat([unseen, start, 0.9 * torch.eye(D, dtype=torch.float64)[:, :1]], 1)
    gate = torch.cat(
        [small * torch.linalg.qr(normal(D, 13, seed=4)).Q.mT, torch.full((1, D), 0.7, dtype=torch.float64)]
    )
    p = torch.tensor([[1.0, 0.9, *[0.5] * 11, 0.0]], dtype=torch.float64)
    within((down, gate, None, p, None), exact((down, gate, None, p, None)))


@given(st.integers(0, 10_000), st.integers(0, 3))
def test_every_tau_and_both_sides_hold_whatever_the_rows(seed: int, decay: int) -> None:
    """Rows at random, not even orthogonal: a tau that is proved exceeds the second eigenvalue; theta and its bound hold."""
    parts = drawn(seed, True, decay=decay)
    factors = mlp_certificates._Factors(*parts[:3])
    _, _, _, p, q = parts
    assert q is not None
    scaled = (factors.down, factors.gate, factors.up, p, q)
    jacobian = operators.mlp_jacobian(*scaled)
    values = torch.linalg.svdvals(jacobian).square()
    few = mlp_certificates.FEW
    left = torch.linalg.svd(jacobian).U.mT[:, :few]
    for mix in (0.0, 1e-3, 0.1):
        rows = (left + mix * normal(len(p), few, D, seed=seed + 7) / D**0.5).float()
        factors.basis = lambda power, trace, rows=rows: rows  # pyright: ignore[reportAttributeAccessIssue]
        single = jacobian.float()
        direction, tau, separated = factors.second(single @ single.mT, factors.sizes(p, q))
        assert (tau >= values[:, 1])[separated].all()
        below, above = factors.sides(direction, tau, p, q, factors.sizes(p, q))
        assert (below <= values[:, 0]).all()
        assert (above >= values[:, 0])[separated].all()
        if mix == 0.0 and not decay:
            assert (above < torch.inf)[separated].all()


def test_rows_that_see_half_of_the_second_direction_prove_no_tau_below_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """In T the second eigenvalue is half of what it is, and z is below tau: R alone says so."""
    eye = torch.eye(D, dtype=torch.float64)
    factors = mlp_certificates._Factors(eye, eye, None)
    rows = eye[[0, 1, *range(3, mlp_certificates.FEW + 1)]].clone()
    rows[1, 1] = rows[1, 2] = 0.5**0.5
    monkeypatch.setattr(factors, "basis", lambda power, trace: rows.float()[None])
    power = torch.diag(torch.tensor([1.0, 0.97] + [0.0] * (D - 2)))[None]
    _, tau, separated = factors.second(power, torch.ones(1, dtype=torch.float64))
    assert 0.84 < float(tau) < 0.97
    assert separated.tolist() == [False]


def test_roundings_are_counted_of_every_term_of_a_sum() -> None:
    factors = mlp_certificates._Factors(*drawn(0, True)[:3])
    assert factors.forming >= gamma(FF, torch.float32)
    assert factors.squaring >= gamma(D, torch.float32)
    assert factors.vectors >= gamma(D + FF, torch.float64)


def test_sizes_are_the_product_of_the_lengths() -> None:
    """Of a gated MLP by the triangle inequality, row by row: equal where both weights are the same."""
    down, gate, _, p, _ = drawn(0, False)
    alone = mlp_certificates._Factors(down, gate, None)
    twice = mlp_certificates._Factors(down, gate, gate)
    exact = alone.down.norm() * (p.abs()[:, :, None] * alone.gate.abs()).norm(dim=(1, 2))
    for found, size in ((alone.sizes(p, None), exact), (twice.sizes(p, p), 2 * exact)):
        assert (found >= size).all()
        torch.testing.assert_close(found, size, rtol=1e-8, atol=0)


@pytest.mark.parametrize(("squaring", "proved"), [(1e-5, True), (6e-5, False)])
def test_the_second_eigenvalue_may_be_more_by_what_is_lost(
    squaring: float, proved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So near are the two that what T may be off decides, and not R or what V has not met."""
    eye = torch.eye(D, dtype=torch.float64)
    factors = mlp_certificates._Factors(eye, eye, None)
    monkeypatch.setattr(factors, "squaring", squaring)
    monkeypatch.setattr(factors, "forming", 0.0)
    monkeypatch.setattr(factors, "basis", lambda power, trace: eye[: mlp_certificates.FEW].float()[None])
    power = torch.diag(torch.tensor([1.0, 0.998] + [0.0] * (D - 2)))[None]
    _, _, separated = factors.second(power, torch.ones(1, dtype=torch.float64))
    assert separated.tolist() == [proved]


@pytest.mark.parametrize("loss", ["none", "forming", "squaring", "skew"])
def test_each_loss_of_float32_is_in_tau(loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As much as D, D D^T or V may be off, two eigenvalues no further from each other than that are not separated."""
    eye = torch.eye(D, dtype=torch.float64)
    factors = mlp_certificates._Factors(eye, eye, None)
    rows = eye[: mlp_certificates.FEW].float()
    if loss == "skew":
        rows = rows * 1.01
    elif loss != "none":
        monkeypatch.setattr(factors, loss, 0.01)
    monkeypatch.setattr(factors, "basis", lambda power, trace: rows[None])
    power = torch.diag(torch.tensor([1.0, 0.98] + [0.0] * (D - 2)))[None]
    _, _, separated = factors.second(power, torch.ones(1, dtype=torch.float64))
    assert separated.tolist() == [loss == "none"]
