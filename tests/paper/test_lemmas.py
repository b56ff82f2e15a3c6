"""Lemma checks for any seed, and each check shown able to fail: on a mutant of what it computes it
has to say so.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ostools.paper import lemmas
from ostools.paper.lemmas import ALL_HYPOTHESES, LEMMAS
from ostools.theory import lemmas as theory
from ostools.theory.decoder import Decoder


def failed(lemma: str, seed: int = 0) -> list[str]:
    return [
        f"{check.hypotheses}: {check.computed}: {check.figure}"
        for check in LEMMAS[lemma](seed)
        if not check.passed
    ]


@pytest.mark.parametrize("lemma", LEMMAS)
def test_the_lemma_holds_and_breaks_without_its_hypotheses(lemma: str) -> None:
    @settings(max_examples=3)
    @given(st.integers(0, 2**31 - 1))
    def holds(seed: int) -> None:
        assert failed(lemma, seed) == []

    holds()
    hypotheses = {check.hypotheses for check in LEMMAS[lemma](0)}
    assert ALL_HYPOTHESES in hypotheses
    assert len(hypotheses) > 1 or lemma == "B.4"


def looking_ahead(scores: torch.Tensor) -> torch.Tensor:
    return scores.softmax(-1)


def cut_after(scores: torch.Tensor) -> torch.Tensor:
    """The mask after the softmax: rows no longer sum to 1."""
    return scores.softmax(-1).tril()


def numbered(logits: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Logits that know from elsewhere which count they are asked about."""
    asked = iter(range(100_000))
    return lambda *args: logits(*args) + next(asked)


MUTANTS: dict[str, tuple[str, Any, str, Any]] = {
    "the spread forgotten": (
        "B.1",
        theory,
        "decrease_bound",
        lambda spread, n: 1.0 / (n * (n + 1)),
    ),
    "nothing inserted": (
        "B.1",
        theory,
        "inserted",
        lambda a, b, c: 2 * (torch.cat([a, c[..., None]], -1),),
    ),
    "noise that lasts": ("4.1/B.2", lemmas, "softmax_distance", lambda x, x_star: 0.5),
    "noise without effect": ("4.1/B.2", lemmas, "softmax_distance", lambda x, x_star: 0.0),
    "another limit": ("B.4", theory, "ALTERNATING", 0.9),
    "a factor 1/2": ("B.4", lemmas, "total_variation", lambda p, q: (p - q).abs().sum(-1) / 2),
    "mask after softmax": ("B.6", theory, "causal_softmax", cut_after),
    "the fixed space miscounted": ("B.6", theory, "eigenvectors", lambda matrix: 1),
    "not triangular": ("B.7", theory, "causal_softmax", looking_ahead),
    "rows that lose weight": ("B.7", theory, "causal_softmax", cut_after),
    "no skip connection": ("5.2/B.8", theory, "lazy", lambda matrix: matrix),
    "a pattern of itself": (
        "5.2/B.8",
        theory,
        "causal_softmax",
        lambda scores: torch.eye(8).double(),
    ),
    "the count known": ("6.2/B.10", Decoder, "logits", numbered(Decoder.logits)),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_check_on_a_mutant_says_fail(monkeypatch: pytest.MonkeyPatch, mutant: str) -> None:
    lemma, owner, name, replacement = MUTANTS[mutant]
    monkeypatch.setattr(owner, name, replacement)
    assert failed(lemma) != []


@pytest.mark.parametrize("options", [{"causal": True}, {"positions": "alibi"}, {"window": 2}])
def test_a_decoder_without_the_hypotheses_of_proposition_61_is_noticed(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    right = Decoder.random

    def wrong(seed: int, **others: Any) -> Decoder:
        return right(seed, **{**others, **options})

    monkeypatch.setattr(Decoder, "random", wrong)
    assert any(line.startswith(ALL_HYPOTHESES) for line in failed("6.1/B.9"))
