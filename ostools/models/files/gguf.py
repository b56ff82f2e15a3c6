"""A GGUF file as a Hugging Face model: its header decides what model and tokenizer are, and
transformers reads the weights.

The reader drops tensors that it does not know, without a word. A file with one is refused.
"""

from __future__ import annotations

import io
import sys
from contextlib import nullcontext, redirect_stderr
from pathlib import Path

import torch
import transformers
from transformers import GgufConfig, PreTrainedTokenizerFast

from ostools.ground.errors import InputError, refusal, short_repr
from ostools.ground.lens import PreTrainedConfig, PreTrainedModel
from ostools.models.families import Family
from ostools.models.files.checks import check_finite, check_loaded
from ostools.models.files.config import family_of_settings
from ostools.models.files.gguf_format.header import ROPE_FACTORS, GgufHeader
from ostools.models.files.gguf_format.settings import config_of
from ostools.models.files.gguf_format.tokenizer import read_gguf_tokenizer


def read_model(
    file: Path, header: GgufHeader, dtype: torch.dtype
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """The model of a GGUF file, dequantised to `dtype`, and its tokenizer.

    Weights are dequantised in float32, and rounded once. Raises `InputError` for what
    `describe_gguf` refuses, and for weights that are missing or not finite.
    """
    config, family, tokenizer = describe_gguf(header, file.name)
    # The reader draws a bar on stderr, whoever reads it: it is shown in a terminal alone.
    bar = nullcontext() if sys.stderr.isatty() else redirect_stderr(io.StringIO())
    with refusal(f"a GGUF that transformers can read, found {file.name}"), bar:
        module, info = getattr(transformers, family.module).from_pretrained(
            file.parent,
            gguf_file=file.name,
            config=config,
            quantization_config=GgufConfig(dequantize=True),
            dtype=dtype,
            ignore_mismatched_sizes=True,  # in `info`, and refused there with both shapes
            output_loading_info=True,
        )
    check_loaded(family, Path(file.name), **info)
    check_finite(module, Path(file.name))
    return module, tokenizer


def describe_gguf(
    header: GgufHeader, name: str
) -> tuple[PreTrainedConfig, Family, PreTrainedTokenizerFast]:
    """The configuration, the family and the tokenizer of a GGUF file, by its header; `name` is what
    errors call the file.

    Raises `InputError` for an architecture, a setting, a tensor or a tokenizer that is not known,
    and for a part of a model.
    """
    count = header.settings.get("split.count", 1)
    if count not in (0, 1):
        raise InputError(
            f"expected one GGUF file with all weights, found {name}, one of {short_repr(count)}: "
            "merge them with llama.cpp's `llama-gguf-split --merge`"
        )
    tokenizer = read_gguf_tokenizer(header, name)
    roles = ("bos_token_id", "eos_token_id", "pad_token_id")
    config = config_of(header, {role: getattr(tokenizer, role) for role in roles}, name)
    where = f"{name} (architecture {header.architecture!r})"
    family = family_of_settings(config.to_dict(), where)
    _require_all_read(header, config, family, name)
    return config, family, tokenizer


def _require_all_read(
    header: GgufHeader, config: PreTrainedConfig, family: Family, name: str
) -> None:
    """Refuse a file with more weights than the model has: the reader drops the others. Fewer are
    missed when it is loaded (`check_loaded`). What `rope_freqs` says is in the configuration.
    """
    with torch.device("meta"):  # shapes without memory
        model = getattr(transformers, family.module)(config)
    expected = sum(weight.numel() for weight in model.parameters())
    stored = sum(header.sizes.values()) - header.sizes.get(ROPE_FACTORS, 0)
    if stored > expected:
        raise InputError(
            f"expected only tensors that transformers reads in {name}, found {stored} weights for "
            f"{expected}: the model would be computed without them; use the checkpoint that the "
            "file was made of"
        )
