"""Upcast as a mitigation: which parts, when it is inactive, its own proof, and real models in 16 bits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch
from jaxtyping import Int
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

import hooks
from hooks import UPCAST_PARTS
from mitigations import MitigationError, Upcast, acts, label, mitigation, running
from tests.checkpoints import tiny_model

TOKENS: Int[Tensor, "batch pos"] = torch.randint(10, 200, (2, 15), generator=torch.Generator().manual_seed(0))


def test_on_a_model_that_is_not_in_16_bits_it_is_inactive() -> None:
    model = tiny_model("gemma2", seed=1)
    before = model(TOKENS)
    with running(model, Upcast()):
        assert all(edit.kind != "upcast" for edit in hooks.active_edits(model))
        assert torch.equal(model(TOKENS), before)
    assert not acts(model, Upcast(), TOKENS[0])


def test_parts_stand_in_one_order_and_are_written_as_a_spec() -> None:
    assert Upcast(("residual", "mlp", "residual")) == Upcast(("mlp", "residual")) == Upcast(["mlp", "residual"])
    assert Upcast("mlp") == Upcast(("mlp",))
    assert mitigation("upcast") == Upcast() == Upcast(UPCAST_PARTS)
    assert mitigation("upcast:parts=residual+norms") == Upcast(("norms", "residual"))
    assert mitigation(label(Upcast(("residual",)))) == Upcast(("residual",))


@dataclass(frozen=True)
class Idle(Upcast):
    """Says that it upcasts, and upcasts something else."""

    @contextmanager
    def hooks(self, model: TransformerBridge) -> Iterator[None]:
        with hooks.upcast(model, ["mlp"]):
            yield


def test_one_that_leaves_attention_in_16_bits_is_caught() -> None:
    model = tiny_model("llama", seed=1, dtype=torch.bfloat16)
    with running(model, Idle(("mlp",))):
        model(TOKENS)
    refusal = r"Upcast: expected attention in float32, found a pattern of torch\.bfloat16 in layer 0"
    with pytest.raises(MitigationError, match=refusal), running(model, Idle(("attention",))):
        model(TOKENS)
