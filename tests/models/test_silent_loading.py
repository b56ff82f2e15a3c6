"""Checkpoints that once gave other numbers without a word: ids below zero, codes without scales, tensors and ids twice."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import ostools as ost
from ostools.ground.errors import InputError
from ostools.measure.answers.answers import end_ids
from ostools.models import load_model
from tests.checkpoints import edit_config, make_model, write_checkpoint

UP = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture
def gemma(tmp_path: Path) -> Path:
    directory = write_checkpoint(tmp_path, "gemma")
    (directory / "generation_config.json").unlink()  # config.json decides where there is none
    return directory


@pytest.fixture
def gemma3(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path, "gemma3")


def _refuses(match: str, directory: Path, **options: Any) -> None:
    with pytest.raises(InputError, match=match) as caught:
        load_model(directory, **options)
    assert "\n" not in str(caught.value)


def _edit_json(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads(file.read_text()) if file.exists() else {}
    change(content)
    file.write_text(json.dumps(content))


# --- ids below zero mean none, as in transformers' generate


@pytest.mark.parametrize(
    ("file", "value"), [("config.json", -1), ("generation_config.json", [5, -100]), ("generation_config.json", None)]
)
def test_a_negative_id_ends_nothing(gemma: Path, file: str, value: Any) -> None:
    _edit_json(gemma / file, lambda settings: settings.update(eos_token_id=value))
    model: Any = load_model(gemma)
    own = model.tokenizer.eos_token_id
    named = {index for index in (value if isinstance(value, list) else [value]) if index is not None and index >= 0}
    assert end_ids(model) == {own} | named
    assert ost.models.describe(model).d_vocab - 1 not in end_ids(model)


def test_a_negative_id_of_another_token_means_none(gemma: Path) -> None:
    name = "pad_token_id"
    probe = torch.tensor([[5, 6, 7]])
    expected = load_model(gemma)(probe)
    edit_config(gemma, **{name: -1})
    model: Any = load_model(gemma)
    assert getattr(model.original_model.generation_config, name) is None
    assert torch.equal(model(probe), expected)


def test_an_adopted_model_ends_where_its_saved_one_ends(gemma: Path) -> None:
    edit_config(gemma, eos_token_id=-1, pad_token_id=-1)
    theirs = AutoModelForCausalLM.from_pretrained(gemma)
    assert end_ids(ost.adopt(theirs)) == set()
    assert theirs.generation_config.eos_token_id == -1  # theirs is as it was


def test_an_id_that_is_no_whole_number(gemma: Path) -> None:
    _edit_json(gemma / "generation_config.json", lambda settings: settings.update(eos_token_id=True))
    _refuses("expected eos_token_id to be a token id, a list of ids or null, found True", gemma)


# --- a stored number that does not stand for itself


@pytest.mark.parametrize(
    ("name", "dtype", "device_map"),
    [
        (UP, torch.int8, None),
        (UP, torch.bool, None),
        (UP, torch.float8_e4m3fn, "disk"),
        ("model.norm.weight", torch.int64, "disk"),
    ],
)
def test_weights_in_few_bits_that_nothing_explains(
    gemma: Path, name: str, dtype: torch.dtype, device_map: str | None
) -> None:
    weights = load_file(gemma / "model.safetensors")
    weights[name] = weights[name].to(dtype)
    save_file(weights, gemma / "model.safetensors", metadata={"format": "pt"})
    _refuses("expected weights of 16 bits or more in .* whose numbers stand for others", gemma, device_map=device_map)


# --- a setting that loads, and gives finite numbers that are no model's


def _set(settings: dict[str, Any], path: str, value: Any) -> None:
    *folders, name = path.split("/")
    for folder in folders:
        settings = settings[folder]
    settings[name] = value


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("rope_parameters/full_attention/rope_theta", math.inf),
        ("rope_parameters/full_attention/rope_theta", {"__float__": "Infinity"}),
        ("final_logit_softcapping", math.nan),
        ("query_pre_attn_scalar", -1),
        ("max_position_embeddings", True),
        ("sliding_window", 0),
    ],
)
def test_a_setting_that_has_to_be_positive(gemma3: Path, path: str, value: Any) -> None:
    _edit_json(gemma3 / "config.json", lambda settings: _set(settings, path, value))
    _refuses(f"expected {path.rpartition('/')[2]} in .*config.json to be above 0, and finite, found ", gemma3)


@pytest.mark.parametrize("value", [math.nan, -1e-6, 1])
def test_an_epsilon_that_is_larger_than_what_it_is_added_to(gemma3: Path, value: float) -> None:
    _edit_json(gemma3 / "config.json", lambda settings: settings.update(rms_norm_eps=value))
    _refuses("expected rms_norm_eps in .* to be at least 0 and below 1, found ", gemma3)


# --- a tensor in two files


@pytest.fixture
def sharded(gemma: Path) -> Path:
    (gemma / "model.safetensors").unlink()
    make_model("gemma").save_pretrained(gemma, max_shard_size="20KB")
    return gemma


def _into(file: Path, name: str, value: torch.Tensor) -> None:
    save_file(load_file(file) | {name: value}, file, metadata={"format": "pt"})


def test_shards_load_as_one_file_does(sharded: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    probe = torch.tensor([[5, 6, 7]])
    whole = write_checkpoint(tmp_path_factory.mktemp("whole"), "gemma")
    assert torch.equal(load_model(sharded)(probe), load_model(whole)(probe))


def test_a_tensor_in_two_files(sharded: Path) -> None:
    places = json.loads((sharded / "model.safetensors.index.json").read_text())["weight_map"]
    other = next(file for file in sorted(set(places.values()), reverse=True) if file != places[UP])
    _into(sharded / other, UP, torch.zeros(48, 32))
    _refuses(rf"expected each tensor in one file of .*, found '{UP}' in .* and in ", sharded)


def test_a_tensor_in_another_file_than_the_index_says(sharded: Path) -> None:
    index = sharded / "model.safetensors.index.json"
    places = json.loads(index.read_text())["weight_map"]
    other = next(file for file in places.values() if file != places[UP])
    _edit_json(index, lambda content: content["weight_map"].update({UP: other}))
    _refuses(rf"expected '{UP}' in {other} as .*index.json says, found it in {places[UP]}", sharded)


def test_an_index_with_a_name_that_no_file_can_have(sharded: Path) -> None:
    _edit_json(sharded / "model.safetensors.index.json", lambda content: content["weight_map"].update(a="a" * 5000))
    _refuses("expected the weights a{80} in .*, found no such file", sharded)


# --- what is said twice


@pytest.mark.parametrize("device_map", [None, "disk"])
def test_an_output_layer_of_its_own_beside_a_configuration_that_ties_it(gemma: Path, device_map: str | None) -> None:
    """transformers takes the two for two, or the one for both, by its version."""
    file, name = gemma / "model.safetensors", "model.embed_tokens.weight"
    weights = load_file(file)
    _into(file, "lm_head.weight", weights[name].clone())
    assert torch.equal(load_model(gemma).unembed.weight, load_model(gemma).embed.weight)
    _into(file, "lm_head.weight", 2 * weights[name])
    _refuses("expected one weight as lm_head.weight and as .*, found two that differ", gemma, device_map=device_map)


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "generation_config.json"])
def test_a_key_that_stands_twice(gemma: Path, file: str) -> None:
    path = gemma / file
    text = path.read_text() if path.exists() else '{"eos_token_id": 1}'
    path.write_text(f'{text.rstrip()[:-1]}, "eos_token_id": 5, "eos_token_id": 6}}')
    _refuses("found something else: the key 'eos_token_id' twice in one object", gemma)


# --- one id for two tokens


def test_one_id_for_two_tokens(gemma: Path) -> None:
    def double(content: dict[str, Any]) -> None:
        content["model"]["vocab"]["a"] = content["model"]["vocab"]["b"]

    _edit_json(gemma / "tokenizer.json", double)
    _refuses(r"expected an id for each token of .*, found id \d+ for 'a' and for 'b'", gemma)


def test_an_added_token_with_another_id_than_the_file_says(gemma: Path) -> None:
    """The library moves it to a free id, without a word."""

    def move(content: dict[str, Any]) -> None:
        content["added_tokens"][-1]["id"] = 70

    _edit_json(gemma / "tokenizer.json", move)
    _refuses(r"expected the token '<end_of_turn>' with id 70 as .*tokenizer.json says, found it with id 5", gemma)
