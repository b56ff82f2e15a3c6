"""The configuration that the settings of a GGUF file stand for: every setting is in it, or the
file is refused.

transformers makes one too, and drops what it does not know without a word. What a file does not say
is as llama.cpp takes it (src/models/*.cpp), or refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from ostools.ground.errors import InputError, refusal, short_repr
from ostools.ground.lens import PreTrainedConfig
from ostools.models.files.gguf_format.header import ROPE_FACTORS, GgufHeader

_MODEL_TYPES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe",
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
    "attention.value_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}
"""What a setting is called in a configuration."""
_GEMMAS = ("gemma2", "gemma3_text")
_LAYERS_OF_27B = (46, 62)  # Gemma 2, Gemma 3
_REQUIRED = (
    "block_count",
    "embedding_length",
    "attention.head_count",
    "attention.layer_norm_rms_epsilon",
    "context_length",
)


Rope = dict[str, str | float]
_LLAMA_3: Rope = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
"""Of Llama 3.1, 3.2 and 3.3 (their config.json); the factor is 8 or 32. The file has only what they
make of each frequency.
"""
_THETA = 10000.0
"""Base of the rotation where a file does not say, as llama.cpp takes it."""


def config_of(header: GgufHeader, ids: Mapping[str, int | None], name: str) -> PreTrainedConfig:
    """The configuration of a GGUF file. `ids`: its special tokens, as a configuration calls them;
    `name`: the file in errors.

    Raises `InputError` for an architecture that is not read, for a setting that no configuration of
    its type has, and for a missing one that nothing stands in for.
    """
    kind = _MODEL_TYPES.get(header.architecture)
    if kind is None:
        raise InputError(
            f"expected a GGUF of an architecture that is read ({', '.join(_MODEL_TYPES)}), found "
            f"{header.architecture!r} in {name}: use the checkpoint that the file was made of"
        )
    settings = _with_unsaid(header, kind, name)
    rope = rope_of(header, kind, settings, name)
    pattern = settings.pop("attention.sliding_window_pattern", None)
    values = _values_of(header, kind, ids, settings, name)
    with refusal(f"settings that make a configuration in {name}", "; convert the checkpoint anew"):
        config = AutoConfig.for_model(kind, **values, rope_parameters=rope)
    for own_name, value in values.items():
        setting = getattr(config, own_name, None)
        if setting == value:
            continue
        # The file holds float32, and a class may write its own decimal number.
        if not (
            isinstance(value, float)
            and isinstance(setting, float)
            and math.isclose(setting, value, rel_tol=1e-6)
        ):
            raise _unknown(header.architecture, own_name, value, name)
    _require_known_scale(config, name)
    _require_pattern(config, pattern, name)
    return config


def _values_of(
    header: GgufHeader,
    kind: str,
    ids: Mapping[str, int | None],
    settings: Mapping[str, Any],
    name: str,
) -> dict[str, object]:
    """The settings but those of positions, and what the tensors of the file say, by the
    configuration's names.
    """
    values: dict[str, object] = {
        "vocab_size": header.rows,
        "tie_word_embeddings": "output.weight" not in header.sizes,
        **ids,
    }
    if kind == "qwen3_moe":
        # llama.cpp makes the weights of the chosen experts sum to 1 (src/models/qwen3moe.cpp)
        values["norm_topk_prob"] = True
    blank = AutoConfig.for_model(kind)
    for setting, value in settings.items():
        if setting.startswith("rope."):
            continue
        own_name = _NAMES.get(setting, "")
        # Qwen 3 MoE reads a width of heads where it is there.
        is_read = hasattr(blank, own_name) or (kind, own_name) == ("qwen3_moe", "head_dim")
        if is_read and values.setdefault(own_name, value) == value:
            continue
        if is_read or not _has_no_effect(setting, value, settings):
            raise _unknown(header.architecture, setting, value, name)
    return values


def _has_no_effect(setting: str, value: object, settings: Mapping[str, Any]) -> bool:
    """Whether a model of a type without such a setting computes as it says anyway."""
    width = settings["embedding_length"] // settings["attention.head_count"]
    implied = {
        "attention.key_length": width,
        "attention.value_length": width,
        "tensor_data_layout": value,
        "vocab_size": value,  # the vocabulary is as large as the embedding
        "attention.causal": True,
    }
    return setting in implied and implied[setting] == value


def _with_unsaid(header: GgufHeader, kind: str, name: str) -> dict[str, Any]:
    """The settings of the file with those that it leaves out; `InputError` where one is missing
    that nothing stands in for, and for a window where the type has none.
    """
    settings = header.settings_of(header.architecture)
    for setting, value in settings.items():
        if isinstance(value, list) and setting != "attention.sliding_window_pattern":
            if len(set(value)) != 1:
                raise InputError(
                    f"expected one {setting} for all layers in {name}, found {short_repr(value)}: "
                    "use the checkpoint that the file was made of"
                )
            settings[setting] = value[0]
    required = (*_REQUIRED, *(("attention.sliding_window",) if kind == "gemma3_text" else ()))
    for setting in required:
        if setting not in settings:
            raise InputError(
                f"expected {header.architecture}.{setting} in {name}, without which another model "
                "would be computed, found none: convert the checkpoint anew, or add it with "
                "gguf-editor-gui of the package gguf"
            )
    if kind not in _GEMMAS and settings.get("attention.sliding_window") is not None:
        window = settings["attention.sliding_window"]
        raise _unknown(header.architecture, "attention.sliding_window", window, name)
    heads = settings["attention.head_count"]
    settings.setdefault("attention.head_count_kv", heads)
    settings.setdefault("attention.key_length", settings["embedding_length"] // heads)
    return settings


def _unknown(architecture: str, setting: str, value: object, name: str) -> InputError:
    return InputError(
        f"expected settings that a model of transformers has, found {architecture}.{setting} = "
        f"{short_repr(value)} in {name}: the model would be computed without it; use the "
        "checkpoint that the file was made of"
    )


def _require_known_scale(config: PreTrainedConfig, name: str) -> None:
    """A Gemma's file does not say what scores are divided by: the square root of the head's width,
    but in the two of 27 B.
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


def _require_pattern(config: PreTrainedConfig, pattern: int | list[bool] | None, name: str) -> None:
    """Where a file says which layers have a window, they are those of the type."""
    if pattern is None:
        return
    layer_types = getattr(config, "layer_types", None) or ()
    type_windows = [layer == "sliding_attention" for layer in layer_types]
    if isinstance(pattern, int):  # every so many layers one has none
        pattern = [bool((layer + 1) % pattern) for layer in range(len(type_windows))]
    file_windows = list(map(bool, pattern))
    if file_windows != type_windows:
        raise InputError(
            f"expected windows in the layers where {config.model_type} has them, found "
            f"{short_repr(file_windows)} in {name}: use the checkpoint that the file was made of"
        )


# ---- rotary positions


def rope_of(
    header: GgufHeader, kind: str, settings: Mapping[str, Any], name: str
) -> Rope | dict[str, Rope]:
    """The `rope_parameters` that the settings `rope.*` of a file stand for; `settings`: all of the
    file's.

    Raises `InputError` for a way of scaling that is not known.
    """
    rope = {key[5:]: value for key, value in settings.items() if key.startswith("rope.")}
    head = settings["attention.key_length"]
    parameters: Rope = {
        "rope_type": "default",
        "rope_theta": float(rope.pop("freq_base", _THETA)),
    }
    rotated = rope.pop("dimension_count", head)
    if rotated != head:
        raise InputError(
            f"expected whole heads of {head} to be rotated in {name}, found "
            f"{header.architecture}.rope.dimension_count = {rotated}: use the checkpoint that "
            "the file was made of"
        )
    parameters |= _take_scaling(rope, settings, header.architecture, name)
    if header.rope_factors is not None:
        parameters |= _of_factors(torch.from_numpy(header.rope_factors), parameters, head, name)
    local = float(rope.pop("freq_base_swa", _THETA)) if kind == "gemma3_text" else None
    for setting, value in rope.items():
        raise _unknown_rotation(header.architecture, setting, value, name)
    if local is None:
        return parameters
    return {
        "full_attention": parameters,
        "sliding_attention": {"rope_type": "default", "rope_theta": local},
    }


def _take_scaling(
    rope: dict[str, Any], settings: Mapping[str, object], architecture: str, name: str
) -> Rope:
    """Parameters of the settings `rope.scaling.*`, which are taken out of `rope`."""
    rope.pop("scaling.finetuned", None)
    kind, linear = rope.pop("scaling.type", "none"), rope.pop("scale_linear", 1.0)
    length = rope.pop("scaling.original_context_length", None)
    if kind == "none" and linear == 1.0:
        if length not in (None, settings.get("context_length")):
            raise _unknown_rotation(architecture, "scaling.original_context_length", length, name)
        return {}
    factor = float(rope.pop("scaling.factor", linear))
    if kind in ("none", "linear"):
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn" and length is not None:
        return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": length}
    raise _unknown_rotation(architecture, "scaling.type", kind, name)


def _of_factors(factors: Tensor, parameters: Rope, head: int, name: str) -> Rope:
    """Llama 3.1's scaling, from what each frequency is divided by: that of its config.json, if it
    makes the same numbers.
    """
    scaling: Rope = {"rope_type": "llama3", "factor": float(factors.max()), **_LLAMA_3}
    plain, scaled = _frequencies(parameters, head), _frequencies(parameters | scaling, head)
    is_same = factors.shape == plain.shape and torch.allclose(
        plain / factors, scaled, rtol=1e-5, atol=0
    )
    if not is_same:
        raise InputError(
            f"expected {ROPE_FACTORS} in {name} to be that of a Llama 3.1, 3.2 or 3.3, found "
            f"others up to {factors.max():.4g}: use the checkpoint that the file was made of"
        )
    return scaling


def _frequencies(parameters: Rope, head: int) -> Tensor:
    """Angle by which each pair of a head turns a position."""
    base = torch.arange(0, head, 2, dtype=torch.int64).float() / head
    plain = 1.0 / float(parameters["rope_theta"]) ** base
    if parameters["rope_type"] == "default":
        return plain
    config = LlamaConfig(
        head_dim=head, hidden_size=head, num_attention_heads=1, rope_parameters=parameters
    )
    return ROPE_INIT_FUNCTIONS[str(parameters["rope_type"])](config, torch.device("cpu"))[0]


def _unknown_rotation(architecture: str, setting: str, value: object, name: str) -> InputError:
    return InputError(
        "expected rotations that are known (none, linear, yarn with "
        "rope.scaling.original_context_length, Llama 3.1's), found "
        f"{architecture}.rope.{setting} = {short_repr(value)} in {name}: use the checkpoint that "
        "the file was made of"
    )
