"""A GGUF file as a Hugging Face model: its header decides what model and tokenizer are, and
transformers reads the weights.

transformers' reader drops settings and tensors that it does not know, without a word. Here every
setting of the header is in the configuration, or the file is refused; so is one with more weights
than the model has. What a file does not say is as llama.cpp takes it (src/models/*.cpp), or
refused.
"""

import io
import math
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext, redirect_stderr
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AutoConfig, GgufConfig, LlamaConfig, PreTrainedTokenizerFast
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from ostools.ground import InputError, PreTrainedConfig, PreTrainedModel, refusal, short_repr
from ostools.models.families import Family
from ostools.models.files.checks import check_finite, check_loaded
from ostools.models.files.config import family_of_settings
from ostools.models.files.gguf_tokenizer import GgufHeader, read_gguf_tokenizer, read_header

_MODEL_TYPES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
}
"""Architectures whose tensors transformers reads (TENSOR_PROCESSORS undoes what the converter did
to them), and its types.
"""
_NAMES = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
"""What a setting is called in a configuration."""
_OF_THE_FILE = ("tensor_data_layout", "vocab_size", "rope.scaling.finetuned")
"""Settings that say nothing of the model: the vocabulary is as large as the embedding."""
_LAYERS_OF_27B = (46, 62)  # Gemma 2, Gemma 3
_REQUIRED = (
    "block_count",
    "embedding_length",
    "attention.head_count",
    "attention.layer_norm_rms_epsilon",
    "context_length",
)
_ROPE_FACTORS = "rope_freqs.weight"
"""The tensor that holds what Llama 3.1 divides its frequencies by."""
_THETA = 10000.0
"""Base of the rotation where a file does not say, as llama.cpp takes it."""
_LLAMA_3 = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
"""Of Llama 3.1, 3.2 and 3.3 (their config.json); the factor is 8 or 32. The file has only what they
make of each frequency.
"""
_STORED = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
Require = Callable[[bool, str, object], None]
"""The refusal of a setting with that value."""


def read_model(
    file: Path, dtype: torch.dtype | None
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast, str]:
    """The model of a GGUF file, dequantised to `dtype` (None: that of a whole file, bfloat16 of
    fewer bits), its tokenizer, and its quantisation.

    Weights are dequantised in float32, and rounded once. Raises `InputError` for what
    `describe_gguf` refuses, and for weights that are missing or not finite.
    """
    header = read_header(file)
    config, family, tokenizer = describe_gguf(header, file.name)
    # The reader draws a bar on stderr, whoever reads it: it is shown in a terminal alone.
    bar = nullcontext() if sys.stderr.isatty() else redirect_stderr(io.StringIO())
    with refusal(f"a GGUF that transformers can read, found {file.name}"), bar:
        module, info = getattr(transformers, family.module).from_pretrained(
            file.parent,
            gguf_file=file.name,
            config=config,
            quantization_config=GgufConfig(dequantize=True),
            dtype=dtype or _STORED.get(header.quantisation, torch.bfloat16),
            ignore_mismatched_sizes=True,  # in `info`, and refused there with both shapes
            output_loading_info=True,
        )
    check_loaded(family, Path(file.name), **info)
    check_finite(module, Path(file.name))
    return module, tokenizer, header.quantisation


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
    config = _config_of(header, {role: getattr(tokenizer, role) for role in roles}, name)
    family = family_of_settings(config.to_dict(), f"{name} (architecture {header.architecture!r})")
    with torch.device("meta"):  # shapes without memory
        model = getattr(transformers, family.module)(config)
    # Fewer weights are missed when it is loaded; of more the reader would drop some. What
    # `rope_freqs` says is in the configuration.
    expected = sum(weight.numel() for weight in model.parameters())
    stored = sum(
        tensor.n_elements for name, tensor in header.tensors.items() if name != _ROPE_FACTORS
    )
    if stored > expected:
        raise InputError(
            f"expected only tensors that transformers reads in {name}, found {stored} weights for "
            f"{expected}: the model would be computed without them; use the checkpoint that the "
            "file was made of"
        )
    return config, family, tokenizer


def _config_of(header: GgufHeader, ids: Mapping[str, int | None], name: str) -> PreTrainedConfig:
    """The configuration of a GGUF file; `ids`: its special tokens, as a configuration calls them.

    Raises `InputError` for an architecture that is not read, for a setting that no configuration of
    its type has, and for a missing one that nothing stands in for.
    """
    kind = _MODEL_TYPES.get(header.architecture)
    if kind is None:
        raise InputError(
            f"expected a GGUF of an architecture that is read ({', '.join(_MODEL_TYPES)}), found "
            f"{header.architecture!r} in {name}: use the checkpoint that the file was made of"
        )

    def require(is_known: bool, setting: str, value: object) -> None:
        if not is_known:
            raise InputError(
                "expected settings that a model of transformers has, found "
                f"{header.architecture}.{setting} = {short_repr(value)} in {name}: the model would "
                "be computed without it; use the checkpoint that the file was made of"
            )

    # Each setting is taken out by what reads it; what is left is not known.
    settings = _settings_of(header, kind, name, require)
    pattern = settings.pop("attention.sliding_window_pattern", None)
    rope = _rope_of(header, kind, settings, require)
    blank = AutoConfig.for_model(kind)
    values: dict[str, Any] = {
        own_name: settings.pop(setting)
        for setting, own_name in _NAMES.items()
        if setting in settings and hasattr(blank, own_name)
    }
    head = values["hidden_size"] // values["num_attention_heads"]
    # What a model computes by anyway, of a type without such a setting.
    implied = {
        "attention.key_length": head,
        "attention.value_length": values.get("head_dim", head),
        "attention.causal": True,
        "rope.dimension_count": values.get("head_dim", head),
        "rope.scaling.original_context_length": values["max_position_embeddings"],
    }
    for setting, value in settings.items():
        require(setting in _OF_THE_FILE or implied.get(setting) == value, setting, value)
    embedding = header.tensors.get("token_embd.weight")
    values |= {
        "vocab_size": 0 if embedding is None else int(embedding.shape[-1]),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        **ids,
    }
    with refusal(f"settings that make a configuration in {name}", "; convert the checkpoint anew"):
        config = AutoConfig.for_model(kind, **values, rope_parameters=rope)
    for own_name, value in values.items():
        setting: Any = getattr(config, own_name, None)
        are_numbers = isinstance(value, float) and isinstance(setting, float)
        # The file holds float32, and a class may write its own decimal number.
        is_close = are_numbers and math.isclose(setting, value, rel_tol=1e-6)
        require(setting == value or is_close, own_name, value)
    _require_as_its_type(config, pattern, name, require)
    return config


def _settings_of(header: GgufHeader, kind: str, name: str, require: Require) -> dict[str, Any]:
    """The settings of the file with those that it leaves out; `InputError` where one is missing
    that nothing stands in for, or differs between layers.
    """
    settings = header.settings_of(header.architecture)
    for setting, value in settings.items():
        if isinstance(value, list) and setting != "attention.sliding_window_pattern":
            require(len(set(value)) == 1, setting, value)
            settings[setting] = value[0]
    for setting in (*_REQUIRED, *["attention.sliding_window"] * (kind == "gemma3_text")):
        if setting not in settings:
            raise InputError(
                f"expected {header.architecture}.{setting} in {name}, without which another model "
                "would be computed, found none: convert the checkpoint anew, or add it with "
                "gguf-editor-gui of the package gguf"
            )
    heads = settings["attention.head_count"]
    settings.setdefault("attention.head_count_kv", heads)
    settings.setdefault("attention.key_length", settings["embedding_length"] // heads)
    return settings


def _require_as_its_type(
    config: PreTrainedConfig, pattern: int | list[bool] | None, name: str, require: Require
) -> None:
    """Refuse a Gemma of 27 B, whose scores are divided by another number than the square root of
    the head's width, which no file says; and windows in other layers than the type's.
    """
    scale = getattr(config, "query_pre_attn_scalar", None)
    if scale is not None and (
        scale != config.head_dim or config.num_hidden_layers in _LAYERS_OF_27B
    ):
        raise InputError(
            f"expected a Gemma whose scores are divided by the square root of {scale}, as "
            f"transformers' GGUF reader takes it, found heads of {config.head_dim} in "
            f"{config.num_hidden_layers} layers in {name}: use the checkpoint that the file was "
            "made of"
        )
    if pattern is None:
        return
    layer_types = getattr(config, "layer_types", None) or ()
    type_windows = [layer == "sliding_attention" for layer in layer_types]
    if isinstance(pattern, int):  # every so many layers one has none
        pattern = [bool((layer + 1) % pattern) for layer in range(len(type_windows))]
    is_same = list(map(bool, pattern)) == type_windows
    require(is_same, "attention.sliding_window_pattern", pattern)


def _rope_of(
    header: GgufHeader, kind: str, settings: dict[str, Any], require: Require
) -> dict[str, Any]:
    """The `rope_parameters` that the settings `rope.*` of a file stand for, which it takes out of
    `settings`; positions may be scaled linearly, or as Llama 3.1's.
    """
    parameters: dict[str, Any] = {
        "rope_type": "default",
        "rope_theta": float(settings.pop("rope.freq_base", _THETA)),
    }
    scaling = settings.pop("rope.scaling.type", "none")
    require(scaling in ("none", "linear"), "rope.scaling.type", scaling)
    factor = settings.pop("rope.scale_linear", 1.0)
    if scaling == "linear" or factor != 1.0:
        factor = float(settings.pop("rope.scaling.factor", factor))
        parameters |= {"rope_type": "linear", "factor": factor}
    if (stored := header.tensors.get(_ROPE_FACTORS)) is not None:
        factors = torch.tensor(stored.data, dtype=torch.float32).flatten()
        parameters |= _of_factors(factors, parameters, settings["attention.key_length"], require)
    if kind != "gemma3_text":
        return parameters
    local = float(settings.pop("rope.freq_base_swa", _THETA))
    return {
        "full_attention": parameters,
        "sliding_attention": {"rope_type": "default", "rope_theta": local},
    }


def _of_factors(
    factors: Tensor, parameters: Mapping[str, Any], head: int, require: Require
) -> dict[str, Any]:
    """Llama 3.1's scaling, from what each frequency is divided by: that of its config.json, if it
    makes the same numbers.
    """
    scaling = {"rope_type": "llama3", "factor": float(factors.max()), **_LLAMA_3}
    with refusal("a rotation that a model of type llama can have", "; convert the checkpoint anew"):
        config = LlamaConfig(
            head_dim=head,
            hidden_size=head,
            num_attention_heads=1,
            rope_parameters={**parameters, **scaling},
        )
        scaled = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))[0]
        plain = 1.0 / parameters["rope_theta"] ** (torch.arange(0, head, 2).float() / head)
    is_known = parameters["rope_type"] == "default" and factors.shape == plain.shape
    is_known = is_known and torch.allclose(plain / factors, scaled, rtol=1e-5, atol=0)
    require(is_known, _ROPE_FACTORS, factors.tolist())
    return scaling
