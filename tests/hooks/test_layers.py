"""A sublayer taken out adds exactly nothing to the residual stream, on every family, and the rest of the package knows it."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

import hooks

Tokens = Int[Tensor, "batch pos"]
STREAMS = ("residual_pre", "residual_mid", "residual_post", "attention_output", "mlp_output")


def streams(model: TransformerBridge, tokens: Tokens) -> Any:
    with hooks.capture(model, *STREAMS) as record:
        model(tokens)
    return record


def test_the_skip_connection_alone_is_left(model: TransformerBridge, tokens: Tokens) -> None:
    with hooks.ablate_layers(model, [1]):
        record = streams(model, tokens)
        assert torch.equal(record["residual_mid"][1], record["residual_pre"][1])
        assert (record["attention_output"][1] == 0).all()
        assert (record["mlp_output"][1] != 0).any()
    with hooks.ablate_layers(model, [1], part="mlp"):
        record = streams(model, tokens)
        assert torch.equal(record["residual_post"][1], record["residual_mid"][1])
        assert not torch.equal(record["residual_mid"][1], record["residual_pre"][1])
    with hooks.ablate_layers(model, [0, 1], part="both"):
        record = streams(model, tokens)
        assert torch.equal(record["residual_post"][1], record["residual_pre"][0])


def test_without_attention_no_token_sees_another(model: TransformerBridge, tokens: Tokens) -> None:
    other = tokens.clone()
    other[:, :-1] = other[:, :-1] + 1
    with hooks.ablate_layers(model, range(2)):
        torch.testing.assert_close(model(tokens)[:, -1], model(other)[:, -1], rtol=1e-6, atol=1e-6)
    assert not torch.equal(model(tokens)[:, -1], model(other)[:, -1])
