"""Tiny GGUF files of quantised weights, and the weights that they stand for."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.checkpoints import make_model

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
Q8_0 = 7
"""llama.cpp's file type; 32 weights share a scale there."""


def dequantised(weight: Tensor) -> Tensor:
    """Q8_0 by its definition: of each 32 numbers of a row a float16 scale d = max|w| / 127, and
    round(w / d) in 8 bits.
    """
    blocks = weight.double().unflatten(-1, (-1, 32))
    exact = blocks.float().abs().amax(-1, keepdim=True) / 127
    whole = torch.where(exact > 0, blocks.float() / exact, torch.zeros(())).double()
    rounded = whole.abs().add(0.5).floor() * whole.sign()  # halves away from zero, as in C
    return (exact.half().double() * rounded).flatten(-2).float()


@cache
def _vocabulary(family: str) -> Any:
    pytest.importorskip("gguf")
    pytest.importorskip("sentencepiece")
    from scripts.gguf_writing import of_bytes, of_pieces

    said = {"add_bos_token": True}
    return (
        of_pieces(prefix=False, said=said) if family == "gemma3" else of_bytes("gpt-2", said=said)
    )


def _model(family: str, config: dict[str, Any]) -> Any:
    own = GEMMA3 if family == "gemma3" else {}
    return make_model(family, **SIZES | own | {"d_vocab": _vocabulary(family).size} | config)


def stands_for(family: str, **config: Any) -> Any:
    """The Hugging Face model of the dequantised weights."""
    model = _model(family, config)
    for weight in model.parameters():
        weight.data = dequantised(weight.data) if weight.ndim == 2 else weight.data
    return model


def write_gguf(
    file: Path,
    family: str,
    *,
    said: dict[str, Any] | None = None,
    unsaid: tuple[str, ...] = (),
    tensors: dict[str, Tensor] | None = None,
    architecture: str | None = None,
    file_type: int | None = Q8_0,
    **config: Any,
) -> Path:
    """A tiny random Llama or Gemma 3 in Q8_0 (`scripts.gguf_writing.write`). Skips the test where
    the package gguf is not installed.
    """
    vocabulary = _vocabulary(family)
    from scripts.gguf_writing import write

    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    settings = {"tokenizer.chat_template": template, **(said or {})}
    settings |= {} if file_type is None else {"general.file_type": file_type}
    options: dict[str, Any] = {"said": settings, "unsaid": unsaid, "tensors": tensors}
    model = _model(family, config)
    return write(file, model, architecture or family, vocabulary, quantised=True, **options)
