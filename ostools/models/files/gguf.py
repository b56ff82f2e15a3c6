"""A GGUF file as a Hugging Face model: what its header says, checked before memory is taken, and transformers' own reader.

The reader drops settings and tensors that it does not know, without a word. Whatever it would drop is refused here, unless the
configuration that it makes says the same.
"""

from __future__ import annotations

import importlib.util
import io
import math
import struct
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import pre_tokenizers
from transformers import AutoConfig, AutoTokenizer, GgufConfig, PreTrainedConfig, PreTrainedModel
from transformers.integrations.ggml import GGUF_CONFIG_MAPPING
from transformers.integrations.gguf import reader
from transformers.integrations.gguf.gguf_conversion_mapping import GGUF_ARCHS
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS
from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor, get_gguf_hf_weights_map

from ostools.ground.errors import InputError, InsufficientMemoryError, in_words, short_repr
from ostools.ground.memory import free_memory
from ostools.models.families import Family
from ostools.models.files.checks import one_line
from ostools.models.files.config import family_of_settings
from ostools.models.files.shards import check_described, check_finite, check_loaded

_MOST_ENTRIES = 1 << 20  # settings, or tensors, of one file; the largest known has some thousands
_READ_FAULTS = (ValueError, struct.error, IndexError, KeyError, TypeError, OverflowError, MemoryError, RecursionError)
_SAME_AS = {
    "attention.key_length": "head_dim",
    "attention.value_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "rope.dimension_count": "head_dim",
    "rope.scaling.original_context_length": "max_position_embeddings",
}
"""Settings that the reader may drop: harmless where the configuration has the same value under this name."""
_HARMLESS = {"tensor_data_layout": None, "rope.scaling.type": "none", "attention.causal": True}
"""Settings that change nothing: with any value (None), or with this one."""
_LAYERS_OF_27B = (46, 62)  # Gemma 2, Gemma 3
_SPLIT_LIKE_GPT2 = ("gpt-2", "phi-2", "mpt", "olmo", "jais")
_SPLIT_DIGITS_FIRST = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone")
"""`tokenizer.ggml.pre` of byte-level vocabularies that cut text as GPT-2's does, and of those that first cut off digits."""


@dataclass(frozen=True)
class GgufHeader:
    """Header of a GGUF file: `settings` (an array of strings by its length), and the shape of each tensor.

    `quantisation` is in llama.cpp's words ("Q4_K_M"), by `general.file_type`; where the file has none, the type that holds most
    of the weights.
    """

    architecture: str
    settings: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]
    quantisation: str
    kinds: Mapping[str, int]
    """How many weights are stored in each type ("Q4_K", "F32")."""

    @property
    def sizes(self) -> list[int]:
        """Weights in each tensor."""
        return [math.prod(shape) for shape in self.shapes.values()]


def require_reader() -> None:
    """Refuse where the package is missing that dequantises the tensors of a GGUF file."""
    if importlib.util.find_spec("gguf") is None:
        raise InputError(
            "expected the package gguf, which reads GGUF files, found none: pip install 'oversquashing-tools[gguf]' "
            "(or pip install gguf)"
        )


def read_header(file: Path) -> GgufHeader:
    """The header of a GGUF file whose tensors all lie inside the file. Reads no weights.

    Raises `InputError` for what is no GGUF file, is truncated, or says of itself what cannot be.
    """
    require_reader()
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    size = file.stat().st_size
    with file.open("rb") as stream:
        start = stream.read(64)
    if start.startswith(b"version https://git-lfs"):
        raise InputError(f"expected weights in {file}, found a Git LFS pointer: run `git lfs pull`")
    if start[:4] != b"GGUF" or size < 24:
        raise InputError(
            f"expected a GGUF file, found {file} without GGUF's first bytes ({size} bytes): fetch it again"
        )
    counts = struct.unpack_from("<QQ", start, 8)
    if max(counts) > _MOST_ENTRIES:
        raise _broken(file, size, f"{counts[0]} tensors and {counts[1]} settings")
    try:
        blob = reader._mapped(str(file))
        settings, tensor_count, position = reader._read_metadata(blob, str(file))
        table, position = reader._read_tensor_table(blob, tensor_count, position)
        alignment = int(settings.get("general.alignment", 32))
        data = -(-position // alignment) * alignment
        kinds: Counter[str] = Counter()
        for name, shape, kind, offset in table:
            block, stored = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
            if (shape[-1] if shape else 1) % block:
                raise _broken(file, size, f"{name} of shape {shape}, whose rows are no whole blocks of {block}")
            if data + offset + math.prod(shape) // block * stored > size:
                raise _broken(file, size, f"{name} of shape {shape} beyond its end")
            kinds[GGMLQuantizationType(kind).name] += math.prod(shape)
        shapes = {name: shape for name, shape, _, _ in table}
    except InputError:
        raise
    except _READ_FAULTS as error:
        raise _broken(file, size, one_line(in_words(error))) from None
    if not shapes or len(shapes) < len(table):
        raise _broken(file, size, "no tensors" if not shapes else "a tensor twice")
    return GgufHeader(str(settings["general.architecture"]), settings, shapes, _quantisation(settings, kinds), kinds)


def _broken(file: Path, size: int, reason: str) -> InputError:
    return InputError(
        f"expected a whole GGUF file, found {file} truncated or corrupt ({size} bytes; {reason}): fetch it again"
    )


def _quantisation(settings: Mapping[str, Any], kinds: Counter[str]) -> str:
    from gguf.constants import LlamaFileType

    file_type = settings.get("general.file_type")
    if file_type in set(LlamaFileType) - {LlamaFileType.GUESSED}:
        return LlamaFileType(file_type).name.removeprefix("MOSTLY_").removeprefix("ALL_")
    return kinds.most_common(1)[0][0]


def read_model(folder: Path, name: str, header: GgufHeader, dtype: torch.dtype) -> tuple[PreTrainedModel, Any]:
    """The model of the GGUF file `name` in `folder`, dequantised to `dtype`, and its tokenizer, as transformers reads them.

    Weights are dequantised in float32, and rounded once.

    Raises `InputError` for an architecture that transformers or ostools does not read, for weights that are missing, left
    over or not finite, and for settings that the reader drops. Memory: `reading_bytes`.
    """
    config, family = _config(folder, name, header)
    _require_memory(header, dtype, name)
    # transformers' newer route (GGUF_ARCHS) multiplies scales and integers in the dtype that it is asked for: twice rounded.
    read_dtype = torch.float32 if header.architecture in GGUF_ARCHS else dtype
    try:
        described = check_described(config, family, header.sizes, Path(name))
        _require_all_read(described, header, name)
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name, local_files_only=True)
        with _bar_in_a_terminal():
            module, info = getattr(transformers, family.module).from_pretrained(
                folder,
                gguf_file=name,
                config=config,
                quantization_config=GgufConfig(dequantize=True),
                dtype=read_dtype,
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
    if read_dtype is not dtype:
        for weight in module.parameters():
            weight.data = weight.data.to(dtype)
    check_finite(module, Path(name))
    _cut_as_the_file_says(tokenizer, header, name)
    return module, tokenizer


@contextmanager
def _bar_in_a_terminal() -> Iterator[None]:
    """The reader draws a bar on stderr, whoever reads it: it is shown in a terminal alone."""
    if sys.stderr.isatty():
        yield
        return
    with redirect_stderr(io.StringIO()):
        yield


def _config(folder: Path, name: str, header: GgufHeader) -> tuple[PreTrainedConfig, Family]:
    """The configuration that transformers makes of the settings, which has to say all that they say."""
    if header.settings.get("split.count", 1) not in (0, 1):
        raise InputError(
            f"expected one GGUF file with all weights, found {name}, one of {short_repr(header.settings['split.count'])}: "
            "merge them with llama.cpp's `llama-gguf-split --merge`"
        )
    try:
        config = AutoConfig.from_pretrained(folder, gguf_file=name, local_files_only=True)
    except Exception as error:
        raise InputError(
            f"expected a GGUF of an architecture that transformers reads, found {header.architecture!r} in {name}: "
            f"{one_line(in_words(error))}"
        ) from None
    family = family_of_settings(config.to_dict(), f"{name} (architecture {header.architecture!r})")
    _require_same_settings(config, header, name)
    _require_known_scale(config, name)
    return config, family


def _require_same_settings(config: PreTrainedConfig, header: GgufHeader, name: str) -> None:
    """Every setting of the architecture is one that the reader knows, changes nothing, or is in the configuration anyway."""
    mapping: Mapping[str, Any] = GGUF_CONFIG_MAPPING
    read = mapping.get(header.architecture) or mapping.get(str(config.model_type)) or {}
    for key, value in header.settings.items():
        setting = key.removeprefix(f"{header.architecture}.")
        if setting == key or read.get(setting) is not None:
            continue
        if setting in _HARMLESS and _HARMLESS[setting] in (None, value):
            continue
        config_value = _of_config(config, _SAME_AS.get(setting))
        if (
            config_value is None
            or not isinstance(value, int | float)
            or not math.isclose(value, config_value, rel_tol=1e-6)
        ):
            raise InputError(
                f"expected settings that transformers' GGUF reader knows, found {key} = {short_repr(value)} in {name}: the "
                "model would be computed without it; use the checkpoint that the file was made of"
            )


def _require_known_scale(config: PreTrainedConfig, name: str) -> None:
    """A Gemma's file does not say what scores are divided by: the square root of the head's width, but in the two of 27 B."""
    scale = getattr(config, "query_pre_attn_scalar", None)
    if scale is not None and (scale != config.head_dim or config.num_hidden_layers in _LAYERS_OF_27B):
        raise InputError(
            f"expected a Gemma whose scores are divided by the square root of {scale}, as transformers' GGUF reader takes it, "
            f"found heads of {config.head_dim} in {config.num_hidden_layers} layers in {name}: use the checkpoint that the "
            "file was made of"
        )


def _of_config(config: PreTrainedConfig, setting: str | None) -> int | float | None:
    """The configuration's number of that name, None where it has none; a head is as wide as its share where nothing is said."""
    if setting == "head_dim" and getattr(config, "head_dim", None) is None:
        return config.hidden_size // config.num_attention_heads
    return None if setting is None else getattr(config, setting, None)


def _require_all_read(described: Any, header: GgufHeader, name: str) -> None:
    """Every tensor of the file is a weight of the model: the reader drops others."""
    processor = TENSOR_PROCESSORS.get(header.architecture, TensorProcessor)(config=described.config.to_dict())
    weights_map = get_gguf_hf_weights_map(described, processor)
    unread_tensors = sorted(tensor for tensor in header.shapes if tensor not in weights_map)
    if unread_tensors:
        raise InputError(
            f"expected only tensors that transformers reads in {name}, found "
            f"{', '.join(unread_tensors[:3])}{', ...' * (len(unread_tensors) > 3)}: "
            "the model would be computed without them; use the checkpoint that the file was made of"
        )


def _cut_as_the_file_says(tokenizer: Any, header: GgufHeader, name: str) -> None:
    """The reader cuts a byte-level vocabulary that it does not know as GPT-2's: the digits that come first are put back."""
    settings = header.settings
    split = settings.get("tokenizer.ggml.pre")
    if settings.get("tokenizer.ggml.model") != "gpt2" or split in (*GGUF_PRE_TOKENIZER_SPLITS, *_SPLIT_LIKE_GPT2):
        return
    if split not in _SPLIT_DIGITS_FIRST:
        raise InputError(
            f"expected a tokenizer whose way of cutting text transformers' GGUF reader knows, found tokenizer.ggml.pre = "
            f"{short_repr(split)} in {name}: texts would become other tokens; use the checkpoint that the file was made of"
        )
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )


def reading_bytes(sizes: Iterable[int], dtype: torch.dtype) -> int:
    """Memory at the peak of reading tensors of these sizes, in this order: those read so far, and the work on one.

    Measured with gguf 0.19 and numpy 2: a tensor takes up to 3.8 times its float32 numbers while it is dequantised; beside the
    weights there are up to 0.5 GiB of vocabulary.
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
