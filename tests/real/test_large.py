"""Qwen2.5-Coder-1.5B-Instruct, where `make real-large` has installed it: its weights are those of
its file, rounded once.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformer_lens.model_bridge import TransformerBridge

from ostools.models import describe, encode, load_model
from ostools.models.describe import named_weights
from ostools.models.files.sources import PACKAGED_MODELS, is_installed
from tests.real.conftest import joined

pytestmark = pytest.mark.slow
NAME = "qwen2.5-coder-1.5b-instruct"
PLACES = {
    "output.weight": "lm_head.weight",
    "blk.0.attn_q.bias": "model.layers.0.self_attn.q_proj.bias",
    "blk.13.attn_v.weight": "model.layers.13.self_attn.v_proj.weight",
    "blk.27.ffn_down.weight": "model.layers.27.mlp.down_proj.weight",
}


@pytest.fixture(scope="module")
def qwen() -> TransformerBridge:
    if not is_installed(NAME):
        pytest.skip(
            f"needs {NAME}: {PACKAGED_MODELS[NAME].install}, or {PACKAGED_MODELS[NAME].make}"
        )
    return load_model(NAME, dtype="bfloat16", device="cpu")


def test_it_loads_by_name_and_says_what_it_is(qwen: TransformerBridge) -> None:
    described = describe(qwen)
    assert described.title == "Qwen2.5-Coder 1.5B Instruct, Q4_K_M"
    assert str(described.quantisation).startswith(
        "Q4_K_M, dequantised to bfloat16 from qwen2.5-coder-1.5b-instruct-q4_k_m"
    )
    assert (described.dtype, described.n_parameters) == ("bfloat16", 1_777_088_000)
    assert qwen.tokenizer.tokenize("1234") == ["1", "2", "3", "4"]
    ids = encode(qwen, "The capital of France is Paris. The capital of Italy is").ids
    assert qwen.tokenizer.decode(qwen(ids[None])[0, -1].argmax()) == " Rome"


def test_its_weights_are_those_of_the_file_as_the_package_gguf_dequantises_them(
    qwen: TransformerBridge, tmp_path: Path
) -> None:
    from gguf import GGUFReader, dequantize

    weights, reader = dict(named_weights(qwen)), GGUFReader(joined(NAME, tmp_path))
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    for name, place in PLACES.items():
        numbers = dequantize(tensors[name].data, tensors[name].tensor_type)
        assert torch.equal(weights[place], torch.from_numpy(np.array(numbers)).bfloat16())
