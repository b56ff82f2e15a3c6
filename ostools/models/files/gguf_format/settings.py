"""The configuration that the settings of a GGUF file stand for: every setting is in it, or the file
is refused.

transformers makes one too, and drops what it does not know without a word (Phi-3's window, Falcon's
epsilon, StarCoder 2's rotation). What a file does not say is as llama.cpp takes it
(src/models/*.cpp), or refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from transformers import AutoConfig

from ostools.ground.errors import InputError, in_words, short_repr
from ostools.ground.lens import PreTrainedConfig
from ostools.models.files.checks import one_line
from ostools.models.files.gguf_format.header import GgufHeader
from ostools.models.files.gguf_format.rotation import rope_of

_MODEL_TYPES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
    "phi3": "phi3",
    "falcon": "falcon",
    "bloom": "bloom",
    "stablelm": "stablelm",
    "gpt2": "gpt2",
    "starcoder2": "starcoder2",
    "nemotron": "nemotron",
}
"""Architectures whose tensors transformers reads (TENSOR_PROCESSORS undoes what the converter did
to them), and its types.

Qwen 3.5 and LFM 2 are not among them: transformers reads them by another route, which rounds twice
in 16 bits."""
_NAMES = {
    "context_length": ("max_position_embeddings",),
    "embedding_length": ("hidden_size",),
    "block_count": ("num_hidden_layers",),
    "feed_forward_length": ("intermediate_size", "n_inner", "ffn_hidden_size"),
    "attention.head_count": ("num_attention_heads",),
    "attention.head_count_kv": ("num_key_value_heads", "num_kv_heads"),
    "attention.key_length": ("head_dim",),
    "attention.value_length": ("head_dim",),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps",),
    "attention.layer_norm_epsilon": (
        "layer_norm_epsilon",
        "layer_norm_eps",
        "norm_epsilon",
        "norm_eps",
    ),
    "attention.sliding_window": ("sliding_window",),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "original_context_length": ("original_max_position_embeddings",),
    "use_parallel_residual": ("use_parallel_residual",),
    "expert_count": ("num_experts",),
    "expert_used_count": ("num_experts_per_tok",),
    "expert_feed_forward_length": ("moe_intermediate_size",),
}
"""What a setting is called in a configuration; the first of these names that the type has."""
_WINDOWED = ("gemma2", "gemma3_text", "phi3", "starcoder2")
_LAYERS_OF_27B = (46, 62)  # Gemma 2, Gemma 3
_PHI_3_WINDOWS: dict[tuple[Any, Any], int] = {(32, 4096): 2047, (40, 4096): 2047}
"""Windows of Phi-3 mini 4k and medium 4k, by layers and length of context. Files from before the
setting existed (July 2024) do not say; llama.cpp took that of the checkpoints' config.json
(ggml-org/llama.cpp, pull request 8931). Since May 2025 it computes without it (13676), whatever the
file says: the checkpoint's own number is taken here."""


_REQUIRED: tuple[str, ...] = (
    "block_count",
    "embedding_length",
    "attention.head_count",
    "context_length",
)
_SAYS_ITS_WINDOW = ("gemma3_text", "phi3")


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
    values = _said_by_tensors(header, kind) | dict(ids)
    rope, rest = rope_of(header, kind, settings, name)
    pattern = rest.pop("attention.sliding_window_pattern", None)
    for setting, value in rest.items():
        own_name = _own_name(kind, setting)
        if own_name is None and _has_no_effect(setting, value, rest):
            continue
        if own_name is None or values.setdefault(own_name, value) != value:
            raise _unknown(header.architecture, setting, value, name)
    if values.get("sliding_window") == 0:
        values["sliding_window"] = None
    try:
        config = AutoConfig.for_model(kind, **values, **({"rope_parameters": rope} if rope else {}))
    except Exception as error:
        raise InputError(
            f"expected settings that make a configuration in {name}, found "
            f"{one_line(in_words(error))}: convert the checkpoint anew"
        ) from None
    _require_taken(config, values, header.architecture, name)
    _require_known_scale(config, name)
    _require_pattern(config, pattern, name)
    return config


def _own_name(kind: str, setting: str) -> str | None:
    """Name of a setting in a configuration of that type; None where it has none, or derives it from
    others.
    """
    blank = AutoConfig.for_model(kind)
    for own_name in _NAMES.get(setting, ()):
        derived = getattr(type(blank), own_name, None)
        # Qwen 3 MoE reads a width of heads where it is there.
        is_read = hasattr(blank, own_name) or (kind, own_name) == ("qwen3_moe", "head_dim")
        if is_read and not (isinstance(derived, property) and derived.fset is None):
            return own_name
    return None


def _has_no_effect(setting: str, value: Any, settings: Mapping[str, Any]) -> bool:
    """Whether a model of a type without such a setting computes as it says anyway."""
    width, heads = settings["embedding_length"], settings["attention.head_count"]
    implied = {
        "context_length": value,  # no table of positions: BLOOM has slopes
        "feed_forward_length": 4 * width,
        "attention.head_count_kv": heads,
        "attention.key_length": width // heads,
        "attention.value_length": width // heads,
        "tensor_data_layout": value,
        "vocab_size": value,  # the vocabulary is as large as the embedding
        "attention.causal": True,
    }
    return setting in implied and implied[setting] == value


def _number(value: Any, setting: str, name: str) -> Any:
    """A setting's value; of a list with a value a layer, the one that all layers have."""
    if not isinstance(value, list) or setting == "attention.sliding_window_pattern":
        return value
    if len(set(value)) != 1:
        raise InputError(
            f"expected one {setting} for all layers in {name}, found {short_repr(value)}: use the "
            "checkpoint that the file was made of"
        )
    return value[0]


def _with_unsaid(header: GgufHeader, kind: str, name: str) -> dict[str, Any]:
    """The settings of the file with those that it leaves out; `InputError` where one is missing
    that nothing stands in for.
    """
    settings = {
        setting: _number(value, setting, name)
        for setting, value in header.settings_of(header.architecture).items()
    }
    if kind == "phi3" and "attention.sliding_window" not in settings:
        layers, length = settings.get("block_count"), settings.get("context_length")
        if (window := _PHI_3_WINDOWS.get((layers, length))) is not None:
            settings["attention.sliding_window"] = window
    _require_said(settings, kind, header.architecture, name)
    heads = settings["attention.head_count"]
    settings.setdefault("attention.head_count_kv", heads)
    settings.setdefault("attention.key_length", settings["embedding_length"] // heads)
    if kind == "falcon" and (key_value_heads := settings.pop("attention.head_count_kv")) != 1:
        # Of others the converter puts queries, keys and values in an order that is not undone.
        raise InputError(
            "expected a Falcon with one head of keys and values (7B), found "
            f"{key_value_heads} in {name}: transformers' reader would mix up its queries, keys and "
            "values; use the checkpoint that the file was made of"
        )
    if kind == "stablelm":
        is_parallel = not any("ffn_norm" in tensor for tensor in header.sizes)
        settings.setdefault("use_parallel_residual", is_parallel)
    return settings


def _require_said(settings: Mapping[str, Any], kind: str, architecture: str, name: str) -> None:
    """Refuse a file that leaves out what nothing stands in for, or has a window where its type has
    none.
    """
    required = set(_REQUIRED) - ({"context_length"} if kind == "bloom" else set())
    if "attention.layer_norm_epsilon" not in settings:
        required.add("attention.layer_norm_rms_epsilon")
    if kind in _SAYS_ITS_WINDOW:
        required.add("attention.sliding_window")
    for setting in sorted(required - settings.keys()):
        raise InputError(
            f"expected {architecture}.{setting} in {name}, without which another model "
            "would be computed, found none: convert the checkpoint anew, or add it with "
            "gguf-editor-gui of the package gguf"
        )
    window = settings.get("attention.sliding_window")
    if window is not None and kind not in _WINDOWED:
        raise _unknown(architecture, "attention.sliding_window", window, name)


def _said_by_tensors(header: GgufHeader, kind: str) -> dict[str, Any]:
    """What the tensors of a file, and its type, say of the configuration."""
    values: dict[str, Any] = {
        "vocab_size": header.rows,
        "tie_word_embeddings": "output.weight" not in header.sizes,
    }
    if kind == "falcon":
        values |= {"multi_query": True, "new_decoder_architecture": False}
    if kind == "qwen3_moe":
        # llama.cpp makes the weights of the chosen experts sum to 1 (src/models/qwen3moe.cpp)
        values |= {"norm_topk_prob": True}
    if kind == "stablelm":
        values |= {"use_qkv_bias": "blk.0.attn_q.bias" in header.sizes}
    return values


def _require_taken(
    config: PreTrainedConfig, values: Mapping[str, Any], architecture: str, name: str
) -> None:
    """The configuration has what it was given: a value may be derived from others, or be read under
    a condition.
    """
    for own_name, value in values.items():
        taken: Any = getattr(config, own_name, None)
        are_floats = isinstance(value, float) and isinstance(taken, float)
        # The file holds float32, and a class may write its own decimal number.
        if taken != value and not (are_floats and math.isclose(taken, value, rel_tol=1e-6)):
            raise _unknown(architecture, own_name, value, name)


def _unknown(architecture: str, setting: str, value: Any, name: str) -> InputError:
    return InputError(
        f"expected settings that a model of transformers has, found {architecture}.{setting} = {short_repr(value)} in {name}: "
        "the model would be computed without it; use the checkpoint that the file was made of"
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
            f"expected a Gemma whose scores are divided by the square root of {scale}, as transformers' GGUF reader takes it, "
            f"found heads of {config.head_dim} in {config.num_hidden_layers} layers in {name}: use the checkpoint that the "
            "file was made of"
        )


def _require_pattern(config: PreTrainedConfig, pattern: Any, name: str) -> None:
    """Where a file says which layers have a window, they are those of the type."""
    if pattern is None:
        return
    layer_types = getattr(config, "layer_types", None) or ()
    own = [layer == "sliding_attention" for layer in layer_types]
    if isinstance(pattern, int):  # every so many layers one has none
        pattern = [(layer + 1) % pattern for layer in range(len(own))]
    said = [bool(windowed) for windowed in pattern]
    if said != own:
        raise InputError(
            f"expected windows in the layers where {config.model_type} has them, found {short_repr(said)} in {name}: use "
            "the checkpoint that the file was made of"
        )
