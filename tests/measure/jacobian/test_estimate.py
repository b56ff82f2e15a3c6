"""Sketches against exact norms: coverage under optional stopping, batches, magnitudes, and which
method is chosen.
"""

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

import ostools as ost
from ostools.measure.jacobian import norms as estimate
from ostools.measure.jacobian.norms import SketchedNorms, choose_method, most_rows, sketched
from ostools.theory.statistics.estimates import Sketch
from tests.checkpoints import tiny_model

IDS = [2, 40, 50, 60, 60, 61, 70, 71]


@dataclass
class Dense:
    """The route of known matrices J_i, which counts what is asked of it."""

    jacobians: Tensor
    calls: list[int] = field(default_factory=list)

    def pull(self, cotangents: Tensor, progress: object = None) -> Tensor:
        self.calls.append(len(cotangents))
        return torch.einsum("cd,pde->cpe", cotangents.to(self.jacobians), self.jacobians)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def estimates_of(jacobians: Tensor, seed: int = 0, **stop: Any) -> SketchedNorms:
    return sketched(Dense(jacobians).pull, jacobians, seeded(seed), **stop)


def low_rank(pos: int = 6, d_model: int = 48) -> Tensor:
    """Per token another spectrum, from nearly rank one to flat, and directions that differ from
    token to token.
    """
    left, right = torch.linalg.qr(
        torch.randn(2, pos, d_model, d_model, generator=seeded(9), dtype=torch.float64)
    ).Q
    powers = torch.tensor([4.0, 2.0, 1.0, 0.5, 0.0, 3.0], dtype=torch.float64)[:pos, None]
    singular = torch.arange(1, d_model + 1, dtype=torch.float64) ** -powers
    scale = 10.0 ** torch.linspace(-4, 4, pos, dtype=torch.float64)
    return (scale[:, None, None] * left * singular[:, None, :]) @ right


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tokens", "error", "looks"), [((2, 3), 0.6, {4, 8, 16}), ((0, 3), 0.35, {32})]
)
def test_stopping_at_the_first_good_look_keeps_coverage(
    tokens: tuple[int, int], error: float, looks: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worst token, where repetitions stop at every look; and near rank one, where the width is
    known beforehand.
    """
    monkeypatch.setattr(estimate, "_FIRST", 4)
    jacobians = low_rank()[slice(*tokens)]
    frobenius, operator = (
        torch.linalg.matrix_norm(jacobians),
        torch.linalg.matrix_norm(jacobians, ord=2),
    )
    sketches = [estimates_of(jacobians, seed, accuracy=error) for seed in range(500)]
    assert all(bool((sketch.operator_lower <= operator * (1 + 1e-9)).all()) for sketch in sketches)
    seen = {sketch.account["cotangents"] for sketch in sketches}
    assert seen >= looks
    assert min(seen) == min(looks)
    lower, upper = (
        torch.stack([getattr(sketch, f"frobenius_{end}") for sketch in sketches])
        for end in ("lower", "upper")
    )
    held = (lower <= frobenius * (1 + 1e-12)) & (frobenius <= upper * (1 + 1e-12))
    assert float(held.double().mean(0).min()) >= 0.93


@pytest.mark.parametrize(("error", "looks"), [(10.0, 1), (1e-9, 3)])
def test_all_looks_together_spend_one_minus_confidence(
    error: float, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look spends half of what is left; the last, which sees all rows, the whole rest."""
    spent, interval = [], Sketch.trace_interval
    monkeypatch.setattr(
        Sketch, "trace_interval", lambda self, level: spent.append(level) or interval(self, level)
    )
    estimates_of(low_rank(), accuracy=error)
    assert len(spent) == looks
    assert spent == pytest.approx([0.025, 0.0125, 0.0125][:looks])


def test_rows_are_doubled_until_the_error_is_reached_and_the_seed_decides() -> None:
    route = Dense(low_rank())
    exact = sketched(route.pull, route.jacobians, seeded(3), accuracy=1e-9)
    assert route.calls == [16, 16, 16]
    assert exact.account == {"cotangents": 48, "half_width": 0.0, "wide": 0}
    torch.testing.assert_close(
        exact.frobenius, torch.linalg.matrix_norm(route.jacobians), rtol=1e-13, atol=0
    )
    assert estimates_of(low_rank(), 3, accuracy=10.0).account["cotangents"] == 16
    again = estimates_of(low_rank(), 3, cotangents=8)
    assert torch.equal(again.frobenius, estimates_of(low_rank(), 3, cotangents=8).frobenius)
    assert not torch.equal(again.frobenius, estimates_of(low_rank(), 4, cotangents=8).frobenius)


def test_a_batch_is_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows pulled in one batch, or in several of other sizes, are the same rows: only the interval
    knows less.
    """
    monkeypatch.setattr(estimate, "BATCH", 5)
    route = Dense(low_rank())
    sketch = sketched(route.pull, route.jacobians, seeded(0), cotangents=24)
    assert (route.calls, sketch.account["cotangents"]) == ([5, 5, 5, 5, 4], 24)


def test_auto_is_exact_where_that_is_cheap_and_fits() -> None:
    assert [choose_method(d, exact_fits=True)[0] for d in (64, 256, 257, 2048)] == ["exact"] * 2 + [
        "sketch"
    ] * 2
    assert (
        choose_method(640, exact_fits=True)[1]
        == "exact Jacobians take 640 rows, and auto takes at most 256"
    )
    tight = choose_method(64, exact_fits=False)
    assert tight == ("sketch", "the exact Jacobians do not fit into the memory")
    assert [most_rows(640, "sketch", k) for k in (8, 64, 65, 640)] == [8, 64, 65, 128]


def test_an_accuracy_asks_for_an_estimate_and_the_account_is_the_tables() -> None:
    model = tiny_model("gemma3")
    result = ost.sensitivity(
        model,
        ost.Prompt.from_ids(model, IDS),
        linearisations=["full"],
        accuracy=0.2,
        layers="all",
        mitigation="sliding-window:window=2",  # many tokens reach nothing
    )
    table: Any = result.frame
    rows: Any = table[table["frobenius_norm"] > 0]
    assert len(rows) < 2 / 3 * len(table)
    (run,) = result.provenance.parameters["runs"].values()
    half = (rows["frobenius_upper"] - rows["frobenius_lower"]) / (2 * rows["frobenius_norm"])
    assert set(result.frame["method"]) == {"estimate"}
    assert result.provenance.parameters["accuracy"] == 0.2
    assert run["half_width"] == pytest.approx(half.median())
    assert run["half_width"] <= 0.2
    assert run["wide"] == int((half > 0.3).sum())


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (
            {"accuracy": 0.1, "method": "exact"},
            "expected an estimate, found method='exact' and",
        ),
        (
            {"accuracy": 0.1, "cotangents": 9},
            "expected an estimate, found method='auto' and cotangents=9",
        ),
        ({"accuracy": 10.0}, "expected a share between 0 and 1, such as 0.1, found 10"),
        ({"accuracy": 0.1, "logit": 17}, "logit"),
    ],
)
def test_an_accuracy_beside_what_contradicts_it_is_refused(
    options: dict[str, Any], match: str
) -> None:
    model = tiny_model("gemma3")
    with pytest.raises(ost.InputError, match=match):
        ost.sensitivity(model, ost.Prompt.from_ids(model, IDS), linearisations=["full"], **options)
