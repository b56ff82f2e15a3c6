"""Rounded weights against Hugging Face's own model with weights rounded by hand."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import Tensor

from ostools import hooks
from ostools.ground.errors import InputError
from ostools.hooks.rounding import FLOATS, FORMATS
from ostools.models.describe import named_weights
from ostools.models.lazy_cast import stored_part
from ostools.models.precision import casting
from ostools.models.precision.casting import holds, view_rounded
from tests.checkpoints import TEXT_FAMILIES, Family, make_model, tiny_model
from tests.sets import quick

IDS = torch.randint(6, 262, (1, 20), generator=torch.Generator().manual_seed(3))
LARGEST = {"int8": 127, "int4": 7}


@pytest.fixture(autouse=True)
def _nothing_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny models have no weight that would be read as those of a large one are."""
    monkeypatch.setattr(casting, "SMALL_WEIGHT", 0)


def by_hand(module: Any, format: str) -> None:
    """Round the parameters of a Hugging Face model where they lie: row by row of what its layers
    multiply with.
    """
    conv = {id(layer.weight) for layer in module.modules() if type(layer).__name__ == "Conv1D"}
    for parameter in module.parameters():
        weight: Tensor = parameter.data
        if format in FLOATS:
            weight.copy_(weight.to(FLOATS[format]).float())
        elif weight.ndim == 2:
            for channel in weight.T if id(parameter) in conv else weight:
                scale = float(channel.abs().max()) / LARGEST[format]
                channel.copy_((channel.double() / scale).round() * scale)


@pytest.mark.parametrize("family", quick(TEXT_FAMILIES, "gemma3", "gpt2"))
def test_a_rounded_copy_is_the_model_with_rounded_weights(family: Family) -> None:
    model = tiny_model(family, seed=2)
    logits, before = model(IDS), {name: weight.clone() for name, weight in named_weights(model)}
    for format in FORMATS:
        module = make_model(family, seed=2)
        by_hand(module, format)
        expected, found = module(IDS).logits, view_rounded(model, format)(IDS)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        assert float((found - logits).abs().max()) > 1e-3
    assert torch.equal(model(IDS), logits)
    assert all(torch.equal(weight, before[name]) for name, weight in named_weights(model))


@pytest.mark.parametrize("format", ["bfloat16", "int8"])
def test_tied_weights_stay_tied_and_views_views(format: Any) -> None:
    gemma, gpt2 = (view_rounded(tiny_model(family), format) for family in ("gemma", "gpt2"))
    module: Any = gemma.original_model
    assert module.lm_head.weight is module.model.embed_tokens.weight
    attention = gpt2.blocks[0].attn
    assert (
        stored_part(attention.q.weight).data_ptr() == stored_part(attention.qkv.weight).data_ptr()
    )


def test_what_a_dtype_holds() -> None:
    model = tiny_model("llama")
    assert holds(model, torch.float64)
    assert not holds(model, torch.bfloat16)
    assert holds(view_rounded(model, "bfloat16"), torch.bfloat16)
    given = tiny_model("llama", fresh=True)
    for weight in given.parameters():
        weight.data.copy_(weight.bfloat16())
    assert holds(given, torch.bfloat16)
    next(given.parameters()).data[0] += 1e-6
    assert not holds(given, torch.bfloat16)


def test_refusals() -> None:
    model = tiny_model("llama", fresh=True)
    with pytest.raises(InputError, match=r"format: expected .*, found 'int16': did you mean"):
        view_rounded(model, cast(Any, "int16"))
    with hooks.ablate_heads(model, [(0, 0)]):
        model(IDS)
        with pytest.raises(
            InputError, match="expected a model without hooks to read in another dtype"
        ):
            view_rounded(model, "int8")
    model.W_E[3, 4] = 449.0
    with pytest.raises(
        InputError,
        match=r"embed_tokens.weight: expected finite numbers up to 448 to store as float8_e4",
    ):
        view_rounded(model, "float8_e4m3fn")
    view_rounded(model, "float8_e5m2")
    model.W_E[3, 4] = float("nan")
    with pytest.raises(InputError, match="found nan"):
        view_rounded(model, "int8")
