"""A GGUF file as a Hugging Face model: its header decides what model and tokenizer are, and
transformers reads the weights.

The reader drops tensors that it does not know, without a word. A file with one is refused.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import GgufConfig

from ostools.ground.errors import InputError, InsufficientMemoryError, in_words, short_repr
from ostools.ground.lens import PreTrainedConfig, PreTrainedModel
from ostools.ground.memory import free_memory
from ostools.models.families import Family
from ostools.models.files.checks import one_line
from ostools.models.files.config import family_of_settings
from ostools.models.files.gguf_format.header import GgufHeader
from ostools.models.files.gguf_format.rotation import ROPE_FACTORS
from ostools.models.files.gguf_format.settings import config_of
from ostools.models.files.gguf_format.tokenizer import read_gguf_tokenizer
from ostools.models.files.shards import check_described, check_finite, check_loaded


def read_model(
    folder: Path, name: str, header: GgufHeader, dtype: torch.dtype
) -> tuple[PreTrainedModel, Any]:
    """The model of the GGUF file `name` in `folder`, dequantised to `dtype`, and its tokenizer.

    Weights are dequantised in float32, and rounded once. Memory: `reading_bytes`.

    Raises `InputError` for what `describe_gguf` refuses, and for weights that are missing or not
    finite.
    """
    config, family, tokenizer = describe_gguf(header, name)
    _require_memory(header, dtype, name)
    try:
        with _bar_in_a_terminal():
            module, info = getattr(transformers, family.module).from_pretrained(
                folder,
                gguf_file=name,
                config=config,
                quantization_config=GgufConfig(dequantize=True),
                dtype=dtype,
                ignore_mismatched_sizes=True,  # reported in `info`, and refused there with both shapes
                output_loading_info=True,
            )
    except InputError:
        raise
    except Exception as error:  # whatever broken metadata or blocks make the library raise
        raise InputError(
            f"expected a GGUF that transformers can read, found {name}: {one_line(in_words(error))}"
        ) from None
    check_loaded(info, family, Path(name))
    check_finite(module, Path(name))
    return module, tokenizer


@contextmanager
def _bar_in_a_terminal() -> Iterator[None]:
    """The reader draws a bar on stderr, whoever reads it: it is shown in a terminal alone."""
    if sys.stderr.isatty():
        yield
        return
    with redirect_stderr(io.StringIO()):
        yield


def describe_gguf(header: GgufHeader, name: str) -> tuple[PreTrainedConfig, Family, Any]:
    """The configuration, the family and the tokenizer of a GGUF file, by its header; `name` is what
    errors call the file.

    Raises `InputError` for an architecture, a setting, a tensor or a tokenizer that is not known,
    and for a part of a model.
    """
    if header.settings.get("split.count", 1) not in (0, 1):
        raise InputError(
            f"expected one GGUF file with all weights, found {name}, one of {short_repr(header.settings['split.count'])}: "
            "merge them with llama.cpp's `llama-gguf-split --merge`"
        )
    try:
        tokenizer = read_gguf_tokenizer(header, name)
        ids = {
            key: getattr(tokenizer, key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")
        }
        config = config_of(header, ids, name)
        family = family_of_settings(
            config.to_dict(), f"{name} (architecture {header.architecture!r})"
        )
        _require_all_read(check_described(config, family, header.sizes, Path(name)), header, name)
    except InputError:
        raise
    except Exception as error:  # whatever settings of a wrong type make a library raise
        raise InputError(
            f"expected a GGUF whose settings can be read, found {name}: {one_line(in_words(error))}"
        ) from None
    return config, family, tokenizer


def _require_all_read(described: Any, header: GgufHeader, name: str) -> None:
    """Every tensor of the file is a weight of the model: the reader drops others.

    As many weights in the file as in the model, none of which may be missing (`check_loaded`),
    leave none over. `rope_freqs` is in the configuration.
    """
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    stored = sum(header.sizes) - sum(header.shapes.get(ROPE_FACTORS, ()))
    expected = sum(weight.numel() for weight in described.parameters())
    if stored == expected:
        return
    architecture = next(
        number for number, named in MODEL_ARCH_NAMES.items() if named == header.architecture
    )
    names = get_tensor_name_map(architecture, described.config.num_hidden_layers)
    known = {
        names.get_name(weight, try_suffixes=(".weight", ".bias"))
        for weight in described.state_dict()
    }
    unread_tensors = sorted(header.shapes.keys() - known - {ROPE_FACTORS})
    if not unread_tensors and stored < expected:
        return  # what is missing is named after loading
    found = (
        ", ".join(unread_tensors[:3]) + ", ..." * (len(unread_tensors) > 3)
        or f"{stored} weights for {expected}"
    )
    raise InputError(
        f"expected only tensors that transformers reads in {name}, found {found}: the model would be computed without them; "
        "use the checkpoint that the file was made of"
    )


def reading_bytes(sizes: Iterable[int], dtype: torch.dtype) -> int:
    """Memory at the peak of reading tensors of these sizes, in this order: those read so far, and
    the work on one.

    Measured with gguf 0.19: a tensor takes up to 3.8 times its float32 numbers while it is
    dequantised. With half a GiB for the vocabulary 3.0 GiB are forecast for Gemma 3 270M, and 4.4
    for Qwen2.5-Coder 1.5B in bfloat16; 2.8 and 3.9 were taken.
    """
    peak = read = 0
    for size in sizes:
        peak, read = max(peak, read + 16 * size), read + size * dtype.itemsize
    return max(peak, read) + (1 << 29)


def _require_memory(header: GgufHeader, dtype: torch.dtype, name: str) -> None:
    needed, free = reading_bytes(header.sizes, dtype), free_memory()
    if needed > free.bytes:
        raise InsufficientMemoryError(
            f"forecast {needed / 2**30:.1f} GiB to dequantise {name} once, found {free}: free memory, or take a machine with "
            "more"
        )
