"""Settings of the machine that saved a model never decide how we compute: in the forecast, in loading, in adopting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

import ostools as ost
from ostools.measure.unloaded import Unloaded
from ostools.models import describe, load_model
from ostools.models.files.sources import locate
from tests.checkpoints import edit_config, write_checkpoint
from tests.models.gguf.write import stands_for, write_gguf

IDS = torch.tensor([[2, 40, 50, 60, 60, 61]])
OTHERS: dict[str, Any] = {
    "attn_implementation": "flash_attention_2",
    "_attn_implementation": "flash_attention_2",
    "_attn_implementation_internal": "sdpa",
    "_experts_implementation": "grouped_mm",
    "fusion_config": {"unheard_of": True},
    "dtype": "nonsense",
    "torch_dtype": ["bfloat16"],
    "quantization_config": {"quant_method": "gguf", "dequantize": True},
    "use_cache": False,
    "torchscript": True,
    "return_dict": False,
    "use_return_dict": False,
    "output_attentions": True,
    "output_hidden_states": True,
    "device_map": "auto",
}


@pytest.mark.parametrize("family", ["gemma3-multimodal", "mixtral"])
def test_a_checkpoint_of_another_machine_loads_and_is_forecast_as_our_own(family: str, tmp_path: Path) -> None:
    own, other = (write_checkpoint(tmp_path / name, family) for name in ("own", "other"))
    edit_config(other, **OTHERS)
    ours, theirs = (load_model(path, device="cpu") for path in (own, other))
    assert torch.equal(ours(IDS), theirs(IDS))
    assert describe(theirs).config_hash == describe(ours).config_hash
    assert describe(theirs).attention_implementation == "eager"
    shapes = [Unloaded(locate(path, None), torch.float32, "cpu").shape for path in (own, other)]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize(
    "asked", [{"quantization_config": GgufConfig(dequantize=True)}, {}], ids=["dequantised", "plain"]
)
def test_a_model_that_transformers_read_from_a_gguf_is_adopted(asked: dict[str, Any], tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", "llama")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=file.name, dtype=torch.float32, **asked)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path, gguf_file=file.name)
    adopted = ost.adopt(theirs, tokenizer=tokenizer, name="mine")
    assert torch.equal(adopted(IDS), stands_for("llama")(IDS, use_cache=False).logits)
