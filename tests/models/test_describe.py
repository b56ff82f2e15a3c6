"""The identity of a model: complete, stable between loads, and new as soon as a weight is."""

import ctypes
from pathlib import Path

import pytest
import torch
from transformer_lens.model_bridge import TransformerBridge

from ostools.ground.errors import InputError
from ostools.models import describe, load_model
from ostools.models.describe import made_once, shared_models
from tests.checkpoints import TWO_FAMILIES, Family, make_model, tiny_model, write_checkpoint


@pytest.mark.parametrize("family", TWO_FAMILIES)
def test_a_loaded_model_is_described(family: Family, tmp_path: Path) -> None:
    described = describe(load_model(write_checkpoint(tmp_path, family), device="cpu"))
    assert (described.name, described.revision) == (str(tmp_path), None)
    assert described.architecture == type(make_model(family)).__name__
    assert (described.n_layers, described.d_model, described.n_heads, described.d_vocab) == (
        2,
        32,
        4,
        268,
    )
    assert described.n_key_value_heads == (4 if family == "gpt2" else 2)
    assert (described.dtype, described.device, described.attention_implementation) == (
        "float32",
        "cpu",
        "eager",
    )
    assert described.trained_lengths is None


@pytest.mark.parametrize("family", TWO_FAMILIES)
def test_the_hash_belongs_to_the_weights(family: Family) -> None:
    model, same, other = tiny_model(family), tiny_model(family), tiny_model(family, seed=1)
    assert describe(model).weight_hash == describe(same).weight_hash
    assert describe(model).weight_hash != describe(other).weight_hash
    assert (
        describe(model).weight_hash != describe(tiny_model(family, dtype=torch.float64)).weight_hash
    )


def _value(model: TransformerBridge, name: str) -> torch.nn.Parameter:
    return dict(model.original_model.named_parameters())[name]


def _replaced(model: TransformerBridge, name: str) -> None:
    path, _, last = name.rpartition(".")
    module = model.original_model.get_submodule(path)
    setattr(module, last, torch.nn.Parameter(_value(model, name).detach() + 1, requires_grad=False))


def _swapped(model: TransformerBridge, name: str) -> None:
    """Two heads change places, through `.data`, which torch's version counter does not see."""
    value = _value(model, name).data
    value.copy_(value.flip(-1))


def _as_bytes(model: TransformerBridge, name: str) -> None:
    """The lowest bit of the last number, in the memory under all of torch."""
    value = _value(model, name)
    last = value.data_ptr() + 4 * (value.numel() - 1)
    ctypes.c_uint32.from_address(last).value ^= 1


EDITS = {"swapped": _swapped, "memory": _as_bytes, "replaced": _replaced}


# A hash reads names and bytes, whatever the family: the two have all kinds of parameters, and views
# of one another.
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
    with pytest.raises(
        InputError, match="expected a raw TransformerBridge, found one in compatibility mode"
    ):
        describe(model)


def test_a_model_on_the_meta_device() -> None:
    model = tiny_model("gemma", fresh=True)
    model.to("meta")
    with pytest.raises(InputError, match="a model with weights, found one on torch's meta device"):
        describe(model)


def test_what_is_shared_is_made_once_of_the_same_weights_and_only_within_the_block() -> None:
    model, other = tiny_model("llama", fresh=True), tiny_model("llama", seed=1)
    made = iter(range(9))

    def value(of: TransformerBridge = model, key: str = "view") -> int:
        return made_once(of, (key,), lambda: next(made))

    with shared_models():
        assert [value(), value(), value(key="twin"), value(other), value()] == [0, 0, 1, 2, 0]
        weight = model.blocks[0].mlp.out.weight
        with torch.no_grad():
            weight.mul_(2)
        assert (value(), value()) == (3, 3)
        with torch.no_grad():
            weight.div_(2)
        assert value() == 0
    assert (value(), value()) == (4, 5)
