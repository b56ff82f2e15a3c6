"""Gates: nothing at 1, the ablation at 0, and their gradient against finite differences, for heads, edges and sublayers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from jaxtyping import Int
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

import hooks
from hooks import Edge, Head, Sublayer
from tests.checkpoints import TEXT_FAMILIES, Family, tiny_model
from tests.sets import quick

Tokens = Int[Tensor, "batch pos"]
TARGETS: dict[str, Sequence[Any]] = {
    "heads": [Head(0, 1), Head(0, 3), Head(1, 0)],
    "edges": [Edge(0, 1, 8, 5), Edge(1, 0, 8, 0), Edge(1, 3, 4, 4)],
    "layers": [Sublayer(0, "attention"), Sublayer(1, "attention"), Sublayer(1, "mlp")],
}


def ablated(model: TransformerBridge, target: Any) -> Any:
    if isinstance(target, Head):
        return hooks.ablate_heads(model, [target])
    if isinstance(target, Edge):
        return hooks.ablate_edges(model, [target])
    return hooks.ablate_layers(model, [target.layer], part=target.part)


@pytest.mark.parametrize("what", TARGETS)
def test_one_is_nothing_and_zero_is_the_ablation(model: TransformerBridge, tokens: Tokens, what: str) -> None:
    targets = TARGETS[what]
    plain = model(tokens)
    with hooks.gated(model, targets, torch.ones(3)):
        assert torch.equal(model(tokens), plain)
        assert {edit.kind for edit in hooks.active_edits(model)} == {"gate"}
    for index, target in enumerate(targets):
        gates = torch.ones(3)
        gates[index] = 0
        with hooks.gated(model, targets, gates):
            found = model(tokens)
        with ablated(model, target):
            expected = model(tokens)
        assert not torch.equal(expected, plain)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6 * float(expected.abs().max()))
    assert torch.equal(model(tokens), plain)


def test_a_mean_stands_in_for_a_head_as_its_ablation_puts_it(model: TransformerBridge, tokens: Tokens) -> None:
    with hooks.capture(model, "z") as record:
        model(tokens)
    means = {Head(1, 2): record["z"][1][:, :, 2].mean((0, 1))}
    with hooks.gated(model, [Head(1, 2)], torch.zeros(1), means=means):
        found = model(tokens)
    with hooks.ablate_heads(model, [(1, 2)], method="mean", reference=tokens):
        torch.testing.assert_close(found, model(tokens), rtol=0, atol=1e-6 * float(found.abs().max()))


@pytest.mark.parametrize("family", quick(TEXT_FAMILIES, "gemma3", "gpt2"))
@pytest.mark.parametrize("what", TARGETS)
def test_the_gradient_is_the_finite_difference(family: Family, what: str, tokens: Tokens) -> None:
    model = tiny_model(family, seed=1, scale=1.5, dtype=torch.float64)
    step = 1e-5

    def number(gates: Tensor) -> Tensor:
        with hooks.gated(model, TARGETS[what], gates):
            return model(tokens)[:, -1].log_softmax(-1)[:, 7].sum()

    with hooks.exact_arithmetic(model):
        gates = torch.ones(3, dtype=torch.float64, requires_grad=True)
        (slope,) = torch.autograd.grad(number(gates), gates)
        for index in range(3):
            move = step * torch.eye(3, dtype=torch.float64)[index]
            with torch.no_grad():
                difference = (number(1 + move) - number(1 - move)) / (2 * step)
            torch.testing.assert_close(slope[index], difference, rtol=1e-7, atol=1e-9)


def test_the_skip_connection_alone_is_left(model: TransformerBridge, tokens: Tokens) -> None:
    def streams() -> Any:
        with hooks.capture(model, "residual_pre", "residual_mid", "residual_post", "mlp_output") as record:
            model(tokens)
        return record

    with hooks.ablate_layers(model, [1]):
        record = streams()
        assert torch.equal(record["residual_mid"][1], record["residual_pre"][1])
        assert (record["mlp_output"][1] != 0).any()
    with hooks.ablate_layers(model, [1], part="mlp"):
        record = streams()
        assert torch.equal(record["residual_post"][1], record["residual_mid"][1])
        assert not torch.equal(record["residual_mid"][1], record["residual_pre"][1])
    with hooks.ablate_layers(model, [0, 1], part="both"):
        record = streams()
        assert torch.equal(record["residual_post"][1], record["residual_pre"][0])
