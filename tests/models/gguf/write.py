"""Tiny GGUF files, written as llama.cpp's converter writes them, and the weights that they stand
for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.checkpoints import D_VOCAB, make_model, make_tokenizer

SIZES: dict[str, Any] = {
    "d_model": 64,
    "d_head": 16,
    "d_mlp": 96,
    "n_layers": 2,
    "tie_word_embeddings": True,
}
GEMMA3: dict[str, Any] = {
    **{
        "n_layers": 6,
        "n_heads": 2,
        "n_key_value_heads": 1,
        "d_head": 256,
        "query_pre_attn_scalar": 256,
    },
    "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
}
"""What no file says of a Gemma 3, and its readers take for granted."""
Q8_0, BLOCK = 7, 32
"""llama.cpp's file type, and how many weights share a scale there."""


def dequantised(weight: Tensor) -> Tensor:
    """Q8_0 by its definition: of each 32 numbers of a row a float16 scale d = max|w| / 127, and
    round(w / d) in 8 bits.
    """
    blocks = weight.double().unflatten(-1, (-1, BLOCK))
    exact = blocks.float().abs().amax(-1, keepdim=True) / 127
    whole = torch.where(exact > 0, blocks.float() / exact, torch.zeros(())).double()
    rounded = whole.abs().add(0.5).floor() * whole.sign()  # halves away from zero, as in C
    return (exact.half().double() * rounded).flatten(-2).float()


def _packed(weight: Tensor) -> NDArray[np.uint8]:
    from gguf import GGMLQuantizationType, quants

    return quants.quantize(weight.numpy(), GGMLQuantizationType.Q8_0)


def stands_for(family: str, **config: Any) -> Any:
    """The Hugging Face model of the dequantised weights."""
    model = make_model(family, **_sizes(family, config))
    for weight in model.parameters():
        weight.data = dequantised(weight.data) if weight.ndim == 2 else weight.data
    return model


def _sizes(family: str, config: dict[str, Any]) -> dict[str, Any]:
    return SIZES | (GEMMA3 if family == "gemma3" else {}) | config


def write_gguf(
    file: Path,
    family: str,
    *,
    settings: dict[str, Any] | None = None,
    tensors: dict[str, Tensor] | None = None,
    without: tuple[str, ...] = (),
    pre: str = "gpt-2",
    architecture: str | None = None,
    file_type: int | None = Q8_0,
    **config: Any,
) -> Path:
    """A tiny random Llama or Gemma 3 in Q8_0. `settings` and `tensors` stand beside the model's
    own; `without` are left out.

    Skips the test where the package gguf is not installed.
    """
    gguf = pytest.importorskip("gguf")
    from scripts.gguf_writing import as_converted, settings_of

    model = make_model(family, **_sizes(family, config))
    own = model.config
    arch = gguf.MODEL_ARCH.LLAMA if family == "llama" else gguf.MODEL_ARCH.GEMMA3
    named = architecture or family
    writer = gguf.GGUFWriter(file, named)
    own_settings = {f"{named}.{key}": value for key, value in settings_of(own, family).items()}
    add = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}
    for key, value in (own_settings | (settings or {})).items():
        add[type(value)](key, value)
    _add_tokenizer(writer, gguf, family, pre)
    if file_type is not None:
        writer.add_file_type(file_type)
    names = gguf.get_tensor_name_map(arch, own.num_hidden_layers)
    for path, weight in model.state_dict().items():
        stem, ending = path.rsplit(".", 1)
        name = f"{names.get_name(stem)}.{ending}"
        if (path == "lm_head.weight" and own.tie_word_embeddings) or name in without:
            continue
        weight = as_converted(family, own, path, weight)
        if weight.ndim == 2:
            writer.add_tensor(name, _packed(weight), raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(name, weight.numpy())
    for name, weight in (tensors or {}).items():
        writer.add_tensor(name, weight.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _add_tokenizer(writer: Any, gguf: Any, family: str, pre: str) -> None:
    """GPT-2's kind, of bytes in pairs; for a Gemma its own, of pieces with scores and single bytes
    where no piece fits.
    """
    tokenizer = make_tokenizer()
    vocabulary = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    assert len(vocabulary) == D_VOCAB
    special = [token for token in vocabulary if token in tokenizer.all_special_tokens]
    kinds = [
        int(gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL)
        for token in vocabulary
    ]
    if family == "gemma3":
        pieces = ["\u2581", "t", "h", "e", "\u2581t", "he"]
        vocabulary = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
        kinds = (
            [gguf.TokenType.CONTROL] * len(special)
            + [gguf.TokenType.BYTE] * 256
            + [gguf.TokenType.NORMAL] * len(pieces)
        )
        writer.add_token_scores(
            [0.0 if len(token) > 2 else -float(i) for i, token in enumerate(vocabulary)]
        )
        writer.add_tokenizer_model("llama")
        writer.add_add_space_prefix(False)
    else:
        halves = {"Ġt": "Ġ t", "he": "h e", "Ġthe": "Ġt he", "in": "i n", "er": "e r", "Ġa": "Ġ a"}
        writer.add_token_merges([halves[token] for token in vocabulary if token in halves])
        writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(vocabulary)
    writer.add_token_types(list(map(int, kinds)))
    for add, token in (("bos", "<bos>"), ("eos", "<eos>"), ("pad", "<pad>"), ("unk", "<unk>")):
        getattr(writer, f"add_{add}_token_id")(vocabulary.index(token))
    writer.add_add_bos_token(True)
    writer.add_chat_template("{% for message in messages %}{{ message['content'] }}{% endfor %}")
