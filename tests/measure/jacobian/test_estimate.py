"""Products against the whole Jacobian, and estimates against exact norms: coverage under optional stopping, refusals."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from scipy.stats import chi2
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

import hooks
from ostools.ground.errors import InputError, InsufficientMemoryError
from ostools.measure import jacobian
from ostools.measure.jacobian import estimate
from ostools.measure.jacobian.estimate import (
    Estimates,
    choose_method,
    default_directions,
    default_passes,
    estimate_norms,
    most_rows,
)
from ostools.measure.jacobian.routes import AutogradRoute
from ostools.measure.jacobian.sensitivity import LINEARISATIONS, freezing
from ostools.models import encode
from tests.checkpoints import TEXT_FAMILIES, Family, tiny_model, trained

IDS = [2, 40, 50, 60, 60, 61, 70]
TEXT = "First Citizen: Before we proceed any further, hear me speak. All: Speak, speak."


@dataclass
class Dense:
    """The route of known matrices J_i, which counts what is asked of it."""

    jacobians: Tensor
    calls: list[int] = field(default_factory=list)

    def pull(self, cotangents: Tensor, progress: object = None) -> Tensor:
        self.calls.append(len(cotangents))
        return torch.einsum("cd,pde->cpe", cotangents.to(self.jacobians), self.jacobians)

    def push(self, tangents: Tensor) -> Tensor:
        self.calls.append(len(tangents))
        return torch.einsum("pde,cpe->cd", self.jacobians, tangents.to(self.jacobians))


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def embedding(model: TransformerBridge, ids: Tensor) -> Tensor:
    return model.input_to_embed(ids[None])[0][0].detach()


def low_rank(pos: int = 6, d_model: int = 48) -> Tensor:
    """Per token another spectrum, from nearly rank one to flat, and directions that differ from token to token."""
    generator = seeded(9)
    left, right = torch.linalg.qr(torch.randn(2, pos, d_model, d_model, generator=generator, dtype=torch.float64)).Q
    powers = torch.tensor([4.0, 2.0, 1.0, 0.5, 0.0, 3.0], dtype=torch.float64)[:pos, None]
    singular = torch.arange(1, d_model + 1, dtype=torch.float64) ** -powers
    scale = 10.0 ** torch.linspace(-4, 4, pos, dtype=torch.float64)
    return (scale[:, None, None] * left * singular[:, None, :]) @ right


def of_trained(name: str, linearisation: str) -> Tensor:
    model = trained(name)
    embedded = embedding(model, encode(model, TEXT).ids[:12])
    return jacobian(model, embedded, freeze=freezing(model, linearisation)).double()


@pytest.mark.parametrize("linearisation", LINEARISATIONS)
@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_pull_and_push_are_products_with_the_jacobian_and_adjoint(family: Family, linearisation: str) -> None:
    model = tiny_model(family, seed=3, dtype=torch.float64)
    embedded = embedding(model, torch.tensor(IDS))
    with hooks.exact_arithmetic(model):
        exact = jacobian(model, embedded, freeze=freezing(model, linearisation))
        route = AutogradRoute(model, embedded, freeze=freezing(model, linearisation), rows=4)
    cotangents = torch.randn(6, embedded.shape[1], generator=seeded(0), dtype=torch.float64)
    tangents = torch.randn(6, *embedded.shape, generator=seeded(1), dtype=torch.float64)
    pulled, pushed = route.pull(cotangents), route.push(tangents)
    torch.testing.assert_close(pulled, torch.einsum("cd,pde->cpe", cotangents, exact), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(pushed, torch.einsum("pde,cpe->cd", exact, tangents), rtol=1e-9, atol=1e-12)
    there, back = (cotangents * pushed).sum(-1), (pulled * tangents).sum((-1, -2))
    torch.testing.assert_close(there, back, rtol=1e-9, atol=0)


@pytest.mark.parametrize("linearisation", ["full", "frozen"])
def test_a_route_is_whole_after_its_context_and_respects_edits(linearisation: str) -> None:
    model = tiny_model("gemma2", seed=3)
    embedded = embedding(model, torch.tensor(IDS))
    cotangents = torch.randn(2, embedded.shape[1], generator=seeded(0))
    with hooks.ablate_edges(model, [(1, 0, 6, 2)]):
        route = AutogradRoute(model, embedded, freeze=freezing(model, linearisation))
        expected = jacobian(model, embedded, freeze=freezing(model, linearisation))
    torch.testing.assert_close(
        route.pull(cotangents), torch.einsum("cd,pde->cpe", cotangents, expected), rtol=1e-4, atol=1e-5
    )


def test_estimates_through_a_model_meet_the_exact_norms() -> None:
    model = tiny_model("gemma2", seed=5, d_model=64, dtype=torch.float64)
    embedded = embedding(model, torch.tensor(IDS))
    exact = jacobian(model, embedded)
    found = estimate_norms(AutogradRoute(model, embedded), 64, directions=12, relative_error=0.05, generator=seeded(0))
    frobenius, operator = torch.linalg.matrix_norm(exact), torch.linalg.matrix_norm(exact, ord=2)
    torch.testing.assert_close(found.frobenius, frobenius, rtol=0.1, atol=0)
    assert bool(((found.operator_lower <= operator * (1 + 1e-9)) & (operator <= found.operator_upper)).all())


def _coverage(jacobians: Tensor, repetitions: int = 500, **settings: float | int) -> tuple[float, float, set[int]]:
    """The worst token's share of repetitions in which its interval, or bracket, holds the exact norm; passes seen."""
    frobenius, operator = torch.linalg.matrix_norm(jacobians), torch.linalg.matrix_norm(jacobians, ord=2)
    intervals, brackets, passes = [], [], set()
    for seed in range(repetitions):
        found = estimate_norms(Dense(jacobians), jacobians.shape[1], generator=seeded(seed), **settings)  # pyright: ignore[reportArgumentType]
        intervals.append((found.frobenius_lower <= frobenius) & (frobenius <= found.frobenius_upper))
        lower = found.operator_lower <= operator * (1 + 1e-9)
        assert bool(lower.all())
        brackets.append(lower & (operator <= found.operator_upper))
        passes.add(found.passes)
    worst = [float(torch.stack(held).double().mean(0).min()) for held in (intervals, brackets)]
    return worst[0], worst[1], passes


@pytest.mark.slow
def test_stopping_at_the_first_good_look_keeps_coverage() -> None:
    """An error at which some repetitions stop at every look, and those that stop early because they look narrow."""
    interval, bracket, passes = _coverage(low_rank(), directions=4, relative_error=0.35, max_passes=44)
    assert passes == {16, 20, 28, 44}
    assert interval >= 0.93
    assert bracket >= 0.93


@pytest.mark.parametrize(("passes", "looks"), [(16, 1), (20, 2), (28, 3), (44, 4), (100, 5)])
def test_all_looks_together_spend_one_minus_confidence(
    passes: int, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error that no look reaches: each spends some level, the last one what is left, and all together the whole."""
    spent, norms = [], estimate._norms

    def noted(captured: Tensor, rows: Any, level: float, confidence: float) -> Estimates:
        spent.append(level)
        return norms(captured, rows, level, confidence)

    monkeypatch.setattr(estimate, "_norms", noted)
    settings: Any = {"directions": 4, "relative_error": 1e-9, "max_passes": passes, "confidence": 0.9}
    estimate_norms(Dense(low_rank()), 48, generator=seeded(0), **settings)
    assert len(spent) == looks
    assert sum(spent) == pytest.approx(0.1, rel=1e-12)
    assert min(spent) > 0


def test_a_look_has_its_level_from_the_chi_squares() -> None:
    """One look, rows of rank one: both ends are quantiles at half of 1 - confidence, the bracket's at the whole of it."""
    jacobians = torch.zeros(1, 48, 48, dtype=torch.float64)
    jacobians[0, 7, 3] = 5.0
    rows = torch.randn(8, 48, generator=seeded(3), dtype=torch.float64)
    captured, seen = torch.zeros(1, 4, 4, dtype=torch.float64), Dense(jacobians).pull(rows)
    found = estimate._norms(captured, [seen[:4], seen[4:]], 0.1, 0.9)
    square = float(seen.square().sum())
    assert float(found.frobenius_lower) ** 2 == pytest.approx(square / float(chi2.ppf(0.95, 8)), rel=1e-9)
    assert float(found.frobenius_upper) ** 2 == pytest.approx(square / float(chi2.ppf(0.05, 8)), rel=1e-9)
    assert float(found.operator_upper) ** 2 == pytest.approx(square / float(chi2.ppf(0.1, 8)), rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("linearisation", ["full", "frozen"])
@pytest.mark.parametrize("name", ["embedded", "stories"])
def test_intervals_and_brackets_cover_on_trained_weights(name: str, linearisation: str) -> None:
    jacobians = of_trained(name, linearisation)
    interval, bracket, _ = _coverage(jacobians, directions=jacobians.shape[1] // 8, relative_error=0.1)
    assert interval >= 0.93
    assert bracket >= 0.93


def test_the_passes_are_counted_and_bounded_and_the_seed_decides() -> None:
    jacobians = low_rank()
    route = Dense(jacobians)
    found = estimate_norms(route, 48, directions=4, relative_error=1e-9, max_passes=30, generator=seeded(3))
    assert route.calls == [4, 4, 4, 4, 4, 8]
    assert found.passes == sum(route.calls) == 28
    assert found.relative_error > 1e-9
    wide_route = Dense(torch.randn(2, 512, 512, generator=seeded(0)))
    most = estimate_norms(wide_route, 512, relative_error=1e-9, generator=seeded(3))
    assert most.passes - 3 * default_directions(512) == most_rows(512)
    again = estimate_norms(Dense(jacobians), 48, directions=4, relative_error=1e-9, max_passes=30, generator=seeded(3))
    torch.testing.assert_close(found.frobenius, again.frobenius, rtol=0, atol=0)  # the same kernels on the same draws
    wide = estimate_norms(Dense(jacobians), 48, directions=4, relative_error=10.0, generator=seeded(3))
    assert wide.passes == 16


def test_what_has_the_rank_of_the_basis_is_exact() -> None:
    """All mass inside Q: nothing is left to estimate, both brackets close."""
    left = torch.randn(40, 3, generator=seeded(0), dtype=torch.float64)
    jacobians = left @ torch.randn(5, 3, 40, generator=seeded(1), dtype=torch.float64)
    found = estimate_norms(Dense(jacobians), 40, directions=4, relative_error=0.1, generator=seeded(2))
    frobenius, operator = torch.linalg.matrix_norm(jacobians), torch.linalg.matrix_norm(jacobians, ord=2)
    for value in (found.frobenius_lower, found.frobenius, found.frobenius_upper):
        torch.testing.assert_close(value, frobenius)
    for value in (found.operator_lower, found.operator_upper):
        torch.testing.assert_close(value, operator)


def test_a_token_that_does_not_reach_the_last_has_norms_zero() -> None:
    jacobians = low_rank()
    jacobians[1] = 0.0  # products with zeros are exact zeros, and so are their sums
    found = estimate_norms(Dense(jacobians), 48, directions=4, generator=seeded(0))
    for name in ("frobenius", "frobenius_lower", "frobenius_upper", "operator_lower", "operator_upper"):
        assert getattr(found, name)[1] == 0.0
        assert bool((getattr(found, name)[2:] > 0).all())
    nothing = estimate_norms(Dense(torch.zeros(3, 48, 48)), 48, directions=4, generator=seeded(0))
    assert nothing.relative_error == 0.0
    assert nothing.operator_upper.tolist() == [0.0, 0.0, 0.0]


def test_norms_over_many_orders_of_magnitude_do_not_overflow_float32() -> None:
    jacobians = low_rank()
    scale = torch.tensor([1e-25, 1e-15, 1e-5, 1.0, 1e10, 1e15], dtype=torch.float64)[:, None, None]
    jacobians = jacobians / torch.linalg.matrix_norm(jacobians, keepdim=True)
    small = estimate_norms(Dense(jacobians), 48, directions=4, generator=seeded(0))
    found = estimate_norms(Dense((scale * jacobians).float()), 48, directions=4, generator=seeded(0))
    for name in ("frobenius", "frobenius_upper", "operator_lower", "operator_upper"):
        expected = getattr(small, name) * scale[:, 0, 0]
        torch.testing.assert_close(getattr(found, name), expected, rtol=1e-4, atol=0)


class Twisted(Dense):
    """A forward derivative that is not the backward one's transpose."""

    def push(self, tangents: Tensor) -> Tensor:
        return super().push(tangents.flip(-1))


def test_a_derivative_that_is_not_what_it_should_be_is_refused() -> None:
    with pytest.raises(InputError, match="forward and the backward derivative disagree"):
        estimate_norms(Twisted(low_rank()), 48, directions=4, generator=seeded(0))
    broken = low_rank()
    broken[2, 0, 0] = float("nan")
    with pytest.raises(InputError, match="not finite"):
        estimate_norms(Dense(broken), 48, directions=4, generator=seeded(0))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"directions": 1}, "directions: expected 2 to fewer than d_model / 2 = 24, found 1"),
        ({"directions": 24}, "directions: expected 2"),
        ({"relative_error": 0.0}, "relative_error: expected a positive number"),
        ({"relative_error": float("nan")}, "relative_error: expected a positive number"),
        ({"confidence": 1.0}, "confidence: expected a probability"),
        ({"directions": 8, "max_passes": 31}, "8 directions need 32 passes at least, found 31"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        estimate_norms(Dense(low_rank()), 48, generator=seeded(0), **settings)  # pyright: ignore[reportArgumentType]


def test_auto_is_exact_where_that_is_cheap_and_fits() -> None:
    assert [choose_method(d, exact_fits=True).method for d in (64, 768, 1024, 2048)] == ["exact"] * 3 + ["estimate"]
    assert choose_method(2048, exact_fits=True).reason == "64 passes at first in place of 2048"
    assert choose_method(2048, directions=32, exact_fits=True).method == "exact"
    tight = choose_method(64, exact_fits=False)
    assert tight.method == "estimate"
    assert tight.reason == "the exact Jacobians do not fit into the memory"
    assert [default_directions(d) for d in (64, 128, 2048, 4096, 8192)] == [8, 16, 16, 32, 32]
    assert [default_passes(d, default_directions(d)) for d in (64, 256, 512, 2048)] == [32, 128, 256, 256]


def test_estimates_are_float64_whatever_the_model_is() -> None:
    found = estimate_norms(Dense(low_rank().float()), 48, directions=4, generator=seeded(0))
    assert isinstance(found, Estimates)
    assert {found.frobenius.dtype, found.operator_upper.dtype} == {torch.float64}


@pytest.mark.parametrize("rows", [1, 3, 100])
def test_rows_in_a_file_are_the_same_rows(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever fits into memory at a time; so do Gram matrices of one token at a time."""
    settings: Any = {"directions": 4, "relative_error": 1e-9, "max_passes": 30}
    held = estimate_norms(Dense(low_rank()), 48, **settings, generator=seeded(3))
    monkeypatch.setattr(estimate, "NORM_BUDGET", 1)
    found = estimate_norms(Dense(low_rank()), 48, **settings, rows_on_disk=rows, generator=seeded(3))
    for name in ("frobenius", "frobenius_lower", "frobenius_upper", "operator_lower", "operator_upper"):
        torch.testing.assert_close(getattr(found, name), getattr(held, name), rtol=1e-12, atol=0)
    assert found.passes == held.passes


def test_a_full_disk_is_refused_before_the_rows_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(InsufficientMemoryError, match=r"has 0\.00 GiB free: shorten the prompt"):
        estimate_norms(Dense(low_rank()), 48, directions=4, rows_on_disk=2, generator=seeded(3))
