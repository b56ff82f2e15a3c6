"""The identity of a model: complete, stable between loads, and new as soon as a weight is."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformer_lens.model_bridge import TransformerBridge

import ostools as ost
from ostools.ground.errors import InputError
from ostools.models import describe, load_model
from ostools.models.describe import hashed_once, named_weights
from tests.checkpoints import TWO_FAMILIES, Family, make_model, tiny_model, write_checkpoint


@pytest.mark.parametrize("family", TWO_FAMILIES)
def test_a_loaded_model_is_described(family: Family, tmp_path: Path) -> None:
    described = describe(load_model(write_checkpoint(tmp_path, family), device="cpu"))
    assert (described.name, described.revision) == (str(tmp_path), None)
    assert described.architecture == type(make_model(family)).__name__
    assert (described.n_layers, described.d_model, described.n_heads, described.d_vocab) == (2, 32, 4, 268)
    assert described.n_key_value_heads == (4 if family == "gpt2" else 2)
    assert (described.dtype, described.device, described.attention_implementation) == ("float32", "cpu", "eager")
    assert described.trained_lengths is None


@pytest.mark.parametrize("family", TWO_FAMILIES)
def test_the_hash_belongs_to_the_weights(family: Family) -> None:
    model, same, other = tiny_model(family), tiny_model(family), tiny_model(family, seed=1)
    assert describe(model).weight_hash == describe(same).weight_hash
    assert describe(model).weight_hash != describe(other).weight_hash
    assert describe(model).weight_hash != describe(tiny_model(family, dtype=torch.float64)).weight_hash


def _value(model: TransformerBridge, name: str) -> torch.nn.Parameter:
    return dict(model.original_model.named_parameters())[name]


def _replaced(model: TransformerBridge, name: str) -> None:
    path, _, last = name.rpartition(".")
    module = model.original_model.get_submodule(path)
    setattr(module, last, torch.nn.Parameter(_value(model, name).detach() + 1, requires_grad=False))


def _last_bit(value: torch.Tensor) -> None:
    last = (-1,) * value.ndim
    value[last] = torch.nextafter(value[last], torch.tensor(float("inf")))


def _through_data(change: Any) -> Any:
    """Edit through `.data`, the common idiom, which torch's version counter does not see."""
    return lambda model, name: change(_value(model, name).data)


EDITS = {
    "added": _through_data(lambda value: value[0].add_(1)),
    "last bit": _through_data(_last_bit),
    "swapped": _through_data(lambda value: value.copy_(value.flip(-1))),  # as when two heads change places
    "replaced": _replaced,
}


# A hash reads names and bytes, whatever the family: the two have all kinds of parameters, and views of one another.
@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("family", TWO_FAMILIES)
def test_an_edited_model_has_a_new_hash(family: Family, edit: str) -> None:
    model = tiny_model(family, fresh=True)
    seen = {describe(model).weight_hash}
    for name in dict(model.original_model.named_parameters()):
        if edit == "replaced" and ".qkv." in name:
            continue  # GPT-2 computes with views of it; what replaces the joint projection alone is not the model's
        EDITS[edit](model, name)
        found = describe(model).weight_hash
        assert found not in seen, name
        seen.add(found)


def test_compatibility_mode_is_refused() -> None:
    model = tiny_model("llama", fresh=True)
    model.enable_compatibility_mode()
    with pytest.raises(InputError, match="expected a raw TransformerBridge, found one in compatibility mode"):
        describe(model)


def test_within_a_measurement_weights_are_hashed_once_until_one_is_written_or_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = sys.modules["ostools.models.describe"]
    calls = []
    real = module._hash_of
    monkeypatch.setattr(module, "_hash_of", lambda weights: calls.append(1) or real(weights))
    model = tiny_model("gemma", fresh=True)
    with hashed_once():
        first = describe(model).weight_hash
        assert describe(model).weight_hash == first
        assert len(calls) == 1
        weight = next(iter(model.parameters()))
        with torch.no_grad():
            weight.add_(1.0)
        second = describe(model).weight_hash
        assert second == real(dict(named_weights(model))) != first
        weight.data = weight.data - 1.0
        assert describe(model).weight_hash == real(dict(named_weights(model))) != second
        other = tiny_model("gemma", fresh=True, seed=1)
        assert describe(other).weight_hash == real(dict(named_weights(other)))
    calls.clear()
    weight.data.add_(1.0)  # leaves no trace: outside of a measurement each description hashes anew
    assert describe(model).weight_hash == real(dict(named_weights(model)))
    assert len(calls) == 1


def test_a_model_on_the_meta_device() -> None:
    theirs: Any = make_model("gemma")
    theirs.to("meta")
    match = "expected a model with weights, found one on torch's meta device"
    with pytest.raises(InputError, match=match):
        ost.adopt(theirs)
    model = tiny_model("gemma", fresh=True)
    for measure in (describe, lambda model: ost.sensitivity(model, "ab"), lambda model: ost.bounds(model, "ab")):
        model.to("meta")
        with pytest.raises(InputError, match=match):
            measure(model)
