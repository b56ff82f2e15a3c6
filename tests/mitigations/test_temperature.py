"""Scores times a factor of the query's own position: against a softmax by hand, in one pass and token by token."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import Int
from torch import Tensor
from transformers import DynamicCache

import hooks
from mitigations import AttentionTemperature, MitigationError, acts, running
from tests.checkpoints import TWO_FAMILIES, Family, tiny_model

TOKENS: Int[Tensor, "batch pos"] = torch.randint(10, 200, (2, 23), generator=torch.Generator().manual_seed(0))


@given(position=st.integers(0, 100_000), base=st.floats(1.01, 1e6))
def test_log_n_is_its_formula_and_never_below_one(position: int, base: float) -> None:
    rule = AttentionTemperature(rule="log-n", base=base)
    (found,) = rule.factors(torch.tensor([position])).tolist()
    assert found >= 1.0
    assert found == pytest.approx(max(1.0, math.log(position + 1) / math.log(base)), rel=1e-12)


@pytest.mark.parametrize("family", TWO_FAMILIES)
@pytest.mark.parametrize(
    "rule", [AttentionTemperature(factor=2.5), AttentionTemperature(rule="log-n", base=4)], ids=["constant", "log-n"]
)
def test_the_pattern_is_the_softmax_of_the_scaled_scores(family: Family, rule: AttentionTemperature) -> None:
    model = tiny_model(family, seed=1)
    with hooks.capture(model, "scores", "pattern") as plain:
        model(TOKENS)
    with running(model, rule), hooks.capture(model, "pattern") as scaled:
        model(TOKENS)
        whole = scaled["pattern"]
        first = whole[0]
    factor = [2.5 if rule.factor else max(1.0, math.log(i + 1) / math.log(4)) for i in range(23)]
    scores = plain["scores"][0].double() * torch.tensor(factor, dtype=torch.float64)[:, None]
    expected = torch.softmax(scores.where(plain["pattern"][0] > 0, -torch.inf), -1)
    torch.testing.assert_close(first.double(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("family", ["gemma2"])
def test_a_step_through_a_cache_is_what_the_whole_text_gives(family: Family) -> None:
    model, past = tiny_model(family, seed=1), DynamicCache()
    rule = AttentionTemperature(rule="log-n", base=3)
    with running(model, rule):
        whole = model(TOKENS)
        steps = [model(TOKENS[:, :9], past_key_values=past, use_cache=True)[:, -1]]
        steps += [model(TOKENS[:, at : at + 1], past_key_values=past, use_cache=True)[:, -1] for at in range(9, 23)]
    torch.testing.assert_close(torch.stack(steps, 1), whole[:, 8:], rtol=1e-4, atol=1e-4)


def test_up_to_its_base_a_model_is_left_as_it_is_bit_for_bit() -> None:
    model = tiny_model("llama", seed=1)
    before = model(TOKENS)
    with running(model, AttentionTemperature(rule="log-n", base=16)):
        after = model(TOKENS)
    assert torch.equal(after[:, :16], before[:, :16])
    assert bool((after[:, 16:] != before[:, 16:]).any(-1).all())
    assert torch.equal(model(TOKENS), before)
    assert not acts(model, AttentionTemperature(rule="log-n", base=23), TOKENS[0])
    assert acts(model, AttentionTemperature(rule="log-n", base=22), TOKENS[0])
    assert not acts(model, AttentionTemperature(factor=1.0), TOKENS[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, r"expected factor=NUMBER or rule='log-n', one of them, found neither"),
        ({"factor": 2.0, "rule": "log-n"}, "expected factor=NUMBER .* one of them, found both"),
        ({"factor": 0.0}, "expected a finite factor above 0, found 0.0"),
        ({"factor": 10**400}, "expected a finite factor above 0, found 1000"),
        ({"factor": math.nan}, "expected a finite factor above 0, found nan"),
        ({"factor": 2.0, "base": 64.0}, "base belongs to rule='log-n', found base=64.0 without"),
        ({"rule": "log-n", "base": 1.0}, "expected a finite base above 1, found 1.0"),
    ],
)
def test_what_is_no_temperature_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(MitigationError, match=f"AttentionTemperature: {message}"):
        AttentionTemperature(**arguments)


@dataclass(frozen=True)
class Leaking(AttentionTemperature):
    """Puts a little weight on what comes after the query, or takes some from every row, behind the first layer."""

    spoiled: Callable[[Tensor], Tensor] = torch.clone

    def hooks(self, model: Any) -> Any:
        return hooks.replace_pattern(model, lambda pattern, layer: self.spoiled(pattern) if layer else pattern)


def test_a_wrong_pattern_is_caught() -> None:
    model = tiny_model("llama", seed=1)
    with running(model, Leaking(factor=1.0)):
        model(TOKENS)
    faults: list[tuple[Callable[[Tensor], Tensor], str]] = [
        (lambda pattern: pattern + 1e-6, r"exactly 0 on the keys that it hides, found 1e-06 in layer 1, .* key 1"),
        (lambda pattern: pattern * 0.999, "weights of every query to sum to 1, found 0.999 in layer 1"),
    ]
    for spoiled, message in faults:
        with pytest.raises(MitigationError, match=message), running(model, Leaking(factor=1.0, spoiled=spoiled)):
            model(TOKENS)
