"""Attention, masks and experts that others registered are refused at both doors; transformers' own
are not.
"""

from __future__ import annotations

import copy
from functools import partial, wraps
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.moe import ExpertsInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

import ostools as ost
from ostools.ground.errors import InputError
from ostools.models import load_model
from ostools.models.files.functions import require_own_functions
from tests.checkpoints import edit_config, make_model, write_checkpoint

IDS = torch.tensor([[2, 40, 50, 60, 60, 7]])


def sharp(*args: Any, **options: Any) -> Any:
    """Attention with scores three times as large."""
    return sdpa_attention_forward(*args, **options | {"scaling": 3 * options["scaling"]})


@wraps(sdpa_attention_forward)
def _disguised(*args: Any, **options: Any) -> Any:
    return sharp(*args, **options)


def _open_mask(*args: Any, **options: Any) -> None:
    return None


FOREIGN: dict[str, tuple[Any, str, Any, str]] = {
    "another name": (
        AttentionInterface,
        "sharp",
        sharp,
        r"expected attention that .* found 'sharp', which is .*\.sharp",
    ),
    "sdpa": (
        AttentionInterface,
        "sdpa",
        sharp,
        "expected attention that .* found 'sdpa', which is",
    ),
    "disguised": (
        AttentionInterface,
        "sdpa",
        _disguised,
        "expected attention that .* found 'sdpa', which is",
    ),
    "partial": (
        AttentionInterface,
        "sdpa",
        partial(sharp),
        "expected attention that .* found 'sdpa', which is",
    ),
    "eager": (
        AttentionInterface,
        "eager",
        sharp,
        "expected attention that .* found 'eager', which is",
    ),
    "mask": (
        AttentionMaskInterface,
        "sdpa",
        _open_mask,
        "expected attention mask that .* found 'sdpa', which is",
    ),
    "mask of eager": (
        AttentionMaskInterface,
        "eager",
        _open_mask,
        "expected attention mask that .* found 'eager', which is",
    ),
    "experts": (ExpertsInterface, "mine", sharp, "expected experts that .* found 'mine', which is"),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_functions_that_are_not_transformers_own_are_refused(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The adopted model would compute with transformers' own in their place, and both would be said
    to agree.
    """
    registry, name, function, match = FOREIGN[kind]
    monkeypatch.setitem(registry._global_mapping, name, function)
    model = make_model("mixtral" if kind == "experts" else "llama")
    setting = "_experts_implementation" if kind == "experts" else "_attn_implementation"
    setattr(model.config, f"{setting}_internal", name)
    with pytest.raises(InputError, match=match) as caught:
        ost.adopt(model)
    assert "\n" not in str(caught.value)


def test_a_function_that_one_layer_computes_with_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(AttentionInterface._global_mapping, "sharp", sharp)
    model: Any = make_model("llama")
    attention = model.model.layers[1].self_attn
    attention.config = copy.deepcopy(model.config)
    attention.config._attn_implementation = "sharp"
    with pytest.raises(InputError, match="found 'sharp'"):
        ost.adopt(model)


@pytest.mark.parametrize(
    "name", ["eager", "sdpa", "flex_attention", "paged|eager", "flash_attention_2"]
)
def test_transformers_own_functions_are_its_own(name: str) -> None:
    model = make_model("llama")
    expected = ost.adopt(model)(IDS)
    model.config._attn_implementation_internal = name
    assert torch.equal(ost.adopt(model)(IDS), expected)
    assert model.config._attn_implementation == name


def test_every_function_that_transformers_registers_is_its_own() -> None:
    model = make_model("llama")
    for registry in (AttentionInterface, AttentionMaskInterface, ExpertsInterface):
        for name in registry._global_mapping:
            model.config._attn_implementation_internal = (
                model.config._experts_implementation_internal
            ) = name
            require_own_functions(model, "it")


@pytest.mark.parametrize(
    ("registry", "name"), [(AttentionInterface, "eager"), (AttentionMaskInterface, "sdpa")]
)
def test_a_checkpoint_is_not_computed_with_a_function_of_others(
    registry: Any, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its configuration names none: what ostools computes with was registered anew."""
    write_checkpoint(tmp_path, "llama")
    load_model(tmp_path)
    monkeypatch.setitem(registry._global_mapping, name, sharp)
    with pytest.raises(
        InputError, match=rf"transformers' own in .*, found {name!r}, which is .*\.sharp"
    ):
        load_model(tmp_path)


@pytest.mark.parametrize(
    "settings",
    [
        {"attn_implementation": "sharp"},
        {"_attn_implementation": "sharp"},
        {"experts_implementation": "sharp"},
        {"attn_implementation": {"": "sdpa", "text_config": "sharp"}},
        {"decoder_config": {"attn_implementation": "sharp"}},
    ],
)
def test_a_checkpoint_that_names_attention_of_others_is_refused(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    """Registered or not: transformers would compute with it, or load nothing."""
    edit_config(write_checkpoint(tmp_path, "llama"), **settings)
    with pytest.raises(
        InputError, match=r"expected .* transformers' own in .*config\.json, found 'sharp'"
    ):
        load_model(tmp_path)


@pytest.mark.parametrize(
    "name", ["sdpa", "flash_attention_2", "kernels-community/flash-attn2", "paged|sdpa"]
)
def test_a_checkpoint_may_name_transformers_own(name: str, tmp_path: Path) -> None:
    edit_config(write_checkpoint(tmp_path, "llama"), _attn_implementation=name)
    load_model(tmp_path)
