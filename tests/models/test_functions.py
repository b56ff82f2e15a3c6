"""Attention, masks and experts that others registered are refused; transformers' own are not."""

from functools import partial, wraps
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.moe import ExpertsInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

import ostools as ost
from tests.checkpoints import make_model, refused, write_checkpoint

IDS = torch.tensor([[2, 40, 50, 60, 60, 7]])


def sharp(*args: Any, **options: Any) -> Any:
    """Attention with scores three times as large."""
    return sdpa_attention_forward(*args, **options | {"scaling": 3 * options["scaling"]})


@wraps(sdpa_attention_forward)
def _disguised(*args: Any, **options: Any) -> Any:
    return sharp(*args, **options)


@pytest.mark.parametrize(
    ("registry", "name", "function"),
    [
        (AttentionInterface, "sharp", sharp),
        (AttentionInterface, "sdpa", partial(sharp)),
        (AttentionInterface, "sdpa", _disguised),
        (AttentionMaskInterface, "eager", sharp),
        (ExpertsInterface, "mine", sharp),
    ],
)
def test_functions_that_are_not_transformers_own_are_refused(
    registry: Any, name: str, function: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The adopted model would compute with transformers' own in their place, and both would be said
    to agree.
    """
    monkeypatch.setitem(registry._global_mapping, name, function)
    is_experts = registry is ExpertsInterface
    model = make_model("mixtral" if is_experts else "llama")
    setting = "_experts_implementation" if is_experts else "_attn_implementation"
    setattr(model.config, f"{setting}_internal", name)
    refused(rf"that is transformers' own in .*, found '{name}'", ost.adopt, model)


@pytest.mark.parametrize("name", ["eager", "sdpa", "flex_attention", "flash_attention_2"])
def test_transformers_own_functions_are_its_own(name: str) -> None:
    model = make_model("llama")
    expected = ost.adopt(model)(IDS)
    model.config._attn_implementation_internal = name
    assert torch.equal(ost.adopt(model)(IDS), expected)
    assert model.config._attn_implementation == name


def test_a_checkpoint_is_not_computed_with_a_function_of_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its configuration names none: what ostools computes with was registered anew."""
    write_checkpoint(tmp_path, "llama")
    ost.load_model(tmp_path)
    monkeypatch.setitem(AttentionInterface._global_mapping, "eager", sharp)
    refused(r"transformers' own in .*, found 'eager'", ost.load_model, tmp_path)
