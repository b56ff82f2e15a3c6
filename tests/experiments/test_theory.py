"""Every lemma as a property over seeds, and every check shown able to fail: the same check on a mutant has to say so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import ostools as ost
from ostools.experiments.lemmas import decoders, softmax, stochastic
from ostools.experiments.lemmas.check import STATED, Check, Checked
from ostools.ground.errors import InputError
from ostools.theory import positions, spectra
from ostools.theory.lemmas import softmax as softmax_lemmas
from ostools.theory.lemmas import stochastic as stochastic_lemmas
from ostools.theory.lemmas import windows

LENGTHS = (1, 2, 3, 8, 40, 300)
EVEN = (2, 4, 40, 300)
SHAPES = ((1, 2), (3, 3))
"""Layers and windows."""
FEW = settings(max_examples=3)  # whole experiments
SEEDS = st.integers(0, 2**31 - 1)

CHECKS: dict[str, Callable[[int], Checked]] = {
    "B.1": lambda seed: softmax.last_weight(seed, LENGTHS),
    "4.1/B.2": lambda seed: softmax.vanishing_noise(seed, LENGTHS),
    "B.4": lambda seed: softmax.alternation([2 * (1 + seed % 1000), 2, 256]),
    "B.6": stochastic.largest_eigenvalue,
    "B.7": stochastic.products,
    "5.2/B.8": stochastic.limit,
    "6.1/B.9": lambda seed: decoders.same_ratio(seed, layers=2 + seed % 3),
    "6.2/B.10": lambda seed: decoders.answers(seed, longest=300),
    "windows": lambda seed: decoders.windowed(seed, shapes=SHAPES),
}


def failed(found: Checked) -> list[str]:
    return [f"{check.hypotheses}: {check.computed}: {check.figure}" for check in found.checks if not check.passed]


@pytest.mark.parametrize("lemma", CHECKS)
def test_the_lemma_holds_and_breaks_without_its_hypotheses(lemma: str) -> None:
    @FEW
    @given(SEEDS)
    def holds(seed: int) -> None:
        found = CHECKS[lemma](seed)
        assert failed(found) == []
        assert {check.hypotheses for check in found.checks} > {STATED}

    holds()


# --- mutants


def sigmoid(x: Tensor, dim: int) -> Tensor:
    """Each weight on its own: no token takes from another."""
    return torch.sigmoid(x)


def hardmax(x: Tensor, dim: int) -> Tensor:
    """All weight on the first of the largest."""
    return torch.nn.functional.one_hot(x.argmax(dim), x.shape[dim]).to(x.dtype)


def lukewarm(x: Tensor, dim: int) -> Tensor:
    return (x / 2.0).softmax(dim)


def bare(x: Tensor, dim: int) -> Tensor:
    """Never divided by Z."""
    return (x - x.amax(dim, keepdim=True)).exp()


def looking_ahead(scores: Tensor) -> Tensor:
    return scores.softmax(-1)


def cut_after(scores: Tensor) -> Tensor:
    """The mask after the softmax: rows no longer sum to 1."""
    return scores.softmax(-1).tril()


def shifted(n: int) -> tuple[Tensor, Tensor]:
    """0101... against itself two places on."""
    x, _ = softmax_lemmas.alternating(n)
    return x, x.roll(2)


def counted(decoder: Any, y: Tensor, n: int) -> Tensor:
    """An answer that knows n from elsewhere."""
    return decoders.of_the_last(decoder, y, n) + n


MUTANTS: dict[str, Callable[[], Checked]] = {
    "B.1 sigmoid": lambda: softmax.last_weight(0, LENGTHS, sigmoid),
    "B.1 hardmax": lambda: softmax.last_weight(0, LENGTHS, hardmax),
    "B.1 bare": lambda: softmax.last_weight(0, LENGTHS, bare),
    "4.1 hardmax": lambda: softmax.vanishing_noise(0, LENGTHS, hardmax),
    "4.1 lukewarm": lambda: softmax.vanishing_noise(0, LENGTHS, lukewarm),
    "4.1 bare": lambda: softmax.vanishing_noise(0, LENGTHS, bare),
    "B.4 lukewarm": lambda: softmax.alternation(EVEN, lukewarm),
    "B.4 hardmax": lambda: softmax.alternation(EVEN, hardmax),
    "B.4 shifted by two": lambda: softmax.alternation(EVEN, pair=shifted),
    "B.6 not triangular": lambda: stochastic.largest_eigenvalue(0, looking_ahead),
    "B.6 mask after softmax": lambda: stochastic.largest_eigenvalue(0, cut_after),
    "B.7 not triangular": lambda: stochastic.products(0, looking_ahead),
    "B.7 mask after softmax": lambda: stochastic.products(0, cut_after),
    "5.2 one entry 1": lambda: stochastic.limit(0, (1.0, 0.1, 0.3, 1.0, 0.7, 0.9, 0.2, 0.4)),
    "5.2 identity": lambda: stochastic.limit(0, (1.0,) * 8),
    "6.1 BOS put back": lambda: decoders.same_ratio(0, [("B10", "B1100")], layers=2),
    "6.1 prompt put back": lambda: decoders.same_ratio(0, [("x10", "x1100")], layers=2),
    "6.1 another ratio": lambda: decoders.same_ratio(0, [("10", "110")], layers=2),
    "6.1 mask put back": lambda: decoders.same_ratio(0, options={"positions": "none", "causal": True}, layers=2),
    "6.1 positions put back": lambda: decoders.same_ratio(0, options={"positions": "alibi", "causal": False}, layers=2),
    "6.1 window put in": lambda: decoders.same_ratio(
        0, options={"positions": "none", "causal": False, "window": 2}, layers=2
    ),
    "6.2 every position read": lambda: decoders.answers(0, longest=300, answer=decoders.of_all),
    "6.2 count known": lambda: decoders.answers(0, longest=300, answer=counted),
    "windows one copy fewer": lambda: decoders.windowed(
        0, lambda layers, w: max(1, windows.exact_from(layers, w) - 1), SHAPES
    ),
    "windows one copy more": lambda: decoders.windowed(
        0, lambda layers, w: windows.exact_from(layers, w) + (layers > 0), SHAPES
    ),
    "windows without depth": lambda: decoders.windowed(0, lambda layers, w: w, SHAPES),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_check_on_a_mutant_says_fail(mutant: str) -> None:
    assert failed(MUTANTS[mutant]()) != []


def test_a_forgotten_factor_two_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """delta with the factor 1/2, and Lemma B.2's bound without its 2."""
    monkeypatch.setattr(softmax, "total_variation", lambda p, q: (p - q).abs().sum(-1) / 2)
    assert failed(softmax.alternation(EVEN)) != []
    assert failed(softmax.vanishing_noise(0, LENGTHS)) != []
    monkeypatch.undo()
    right = softmax_lemmas.total_variation_bound
    monkeypatch.setattr(softmax_lemmas, "total_variation_bound", lambda x, y: right(x, y) / 2)
    assert failed(softmax.vanishing_noise(0, LENGTHS)) != []


def test_a_bound_that_forgets_the_spread_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(softmax_lemmas, "decrease_bound", lambda spread, n: 1.0 / (n * (n + 1)))
    assert failed(softmax.last_weight(0, LENGTHS)) != []


def test_a_power_without_the_skip_connection_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spectra, "lazy", lambda matrix: matrix)
    assert failed(stochastic.limit(0)) != []


def test_a_rate_of_the_wrong_eigenvalue_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stochastic_lemmas, "lazy_rate", lambda matrix: float(spectra.second_eigenvalue(matrix)))
    assert failed(stochastic.limit(0)) != []


@pytest.mark.parametrize("mutant", ["one key too many", "a sink"])
def test_windows_that_see_more_are_found(monkeypatch: pytest.MonkeyPatch, mutant: str) -> None:
    right = positions.visible

    def wrong(n: int, causal: bool, window: int | None) -> Tensor:
        if window is None or mutant == "one key too many":
            return right(n, causal, None if window is None else window + 1)
        return right(n, causal, window) | (torch.arange(n) == 0)

    monkeypatch.setattr(positions, "visible", wrong)
    assert failed(decoders.windowed(0, shapes=SHAPES)) != []


@pytest.mark.parametrize("relation", ["<=", ">=", ">", "="])
def test_what_is_not_a_number_passes_nothing(relation: str) -> None:
    assert not Check("", float("nan"), relation, 0.0, 1.0).passed


@pytest.mark.parametrize(
    ("figure", "relation", "required", "tolerance", "passed"),
    [
        (1.0, "<=", 1.0, 0.0, True),
        (1.1, "<=", 1.0, 0.2, True),
        (1.1, "<=", 1.0, 0.0, False),
        (0.9, ">=", 1.0, 0.0, False),
        (0.0, ">", 0.0, 1.0, False),
        (0.9, "=", 1.0, 0.2, True),
        (0.9, "=", 1.0, 0.0, False),
    ],
)
def test_relations(figure: float, relation: str, required: float, tolerance: float, passed: bool) -> None:
    assert Check("", figure, relation, required, tolerance).passed is passed


# --- the whole


@pytest.fixture(scope="module")
def found() -> Any:
    return ost.experiments.theory(seed=3)


def test_all_lemmas_pass_in_the_papers_order(found: Any) -> None:
    assert found.passed
    assert list(dict.fromkeys(found.frame["lemma"])) == list(CHECKS)
    assert set(found.curves["lemma"]) == set(CHECKS)
    assert (found.frame.groupby("lemma")["statement"].nunique() == 1).all()
    (delta,) = found.frame[(found.frame["lemma"] == "B.4") & (found.frame["hypotheses"] == STATED)]["figure"]
    assert delta == pytest.approx(0.924234314520, abs=1e-11)


def test_the_same_seed_gives_the_same_figures() -> None:
    one, other = (ost.experiments.theory(seed=5, lemmas=["B.1", "B.6"]) for _ in range(2))
    pd.testing.assert_frame_equal(one.frame, other.frame)
    assert not one.frame["figure"].equals(ost.experiments.theory(seed=6, lemmas=["B.1", "B.6"]).frame["figure"])


@pytest.mark.parametrize("name", ["4.1", "B.2", "4.1/B.2"])
def test_either_name_will_do(name: str) -> None:
    assert set(ost.experiments.theory(lemmas=[name], lengths=[4, 8]).frame["lemma"]) == {"4.1/B.2"}


def test_a_lemma_that_fails_is_a_row_and_no_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(softmax_lemmas, "ALTERNATING", 0.9)
    result = ost.experiments.theory(lemmas=["B.4", "B.7"])
    assert not result.passed
    assert list(result.frame[~result.frame["passed"]]["lemma"]) == ["B.4"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lemmas": ["B.44"]}, "unknown lemma 'B.44': did you mean 'B.4'"),
        ({"lemmas": []}, "expected at least one lemma"),
        ({"seed": -1}, "seed: expected a whole number of at least 0, found -1"),
        ({"lengths": [0, 2]}, "lengths: expected whole numbers of at least 1, found 0"),
        ({"lengths": []}, "lengths: expected whole numbers of at least 1, found none"),
        ({"lengths": [2, 7]}, "B.4 is about even lengths, found 7"),
        ({"lengths": [4], "lemmas": ["B.6"]}, "lengths belong to the lemmas B.1, 4.1/B.2, B.4"),
    ],
)
def test_what_cannot_be_checked_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message.replace(".", r"\.")):
        ost.experiments.theory(**options)


def test_lemmas_of_odd_lengths_may_be_asked_for_without_b4() -> None:
    result = ost.experiments.theory(lemmas=["B.1", "4.1"], lengths=[7, 1])
    assert result.passed
    assert set(result.curves["x"]) == {1.0, 7.0}
