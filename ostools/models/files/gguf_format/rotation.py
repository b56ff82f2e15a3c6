"""Rotary positions of a GGUF file, as the `rope_parameters` of a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from ostools.ground.errors import InputError, short_repr
from ostools.models.files.gguf_format.header import ROPE_FACTORS, GgufHeader

_LLAMA_3 = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
"""Of Llama 3.1, 3.2 and 3.3 (their config.json); the factor is 8 or 32. The file has only what they
make of each frequency.
"""
_THETA = 10000.0
"""Base of the rotation where a file does not say, as llama.cpp takes it."""


def rope_of(
    header: GgufHeader, kind: str, settings: Mapping[str, Any], name: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The `rope_parameters` that the settings `rope.*` of a file stand for, and the settings that
    are left.

    Raises `InputError` for a way of scaling that is not known.
    """
    rope = {key[5:]: value for key, value in settings.items() if key.startswith("rope.")}
    rest = {key: value for key, value in settings.items() if not key.startswith("rope.")}
    head = settings["attention.key_length"]
    theta = float(rope.pop("freq_base", _THETA))
    parameters: dict[str, Any] = {"rope_type": "default", "rope_theta": theta}
    rotated = rope.pop("dimension_count", head)
    if rotated != head:
        raise InputError(
            f"expected whole heads of {head} to be rotated in {name}, found "
            f"{header.architecture}.rope.dimension_count = {rotated}: use the checkpoint that "
            "the file was made of"
        )
    parameters |= _scaling(rope, settings, header.architecture, name)
    if header.rope_factors is not None:
        parameters |= _of_factors(torch.from_numpy(header.rope_factors), parameters, head, name)
    if kind == "gemma3_text":
        local = float(rope.pop("freq_base_swa", _THETA))
        parameters = {
            "full_attention": parameters,
            "sliding_attention": {"rope_type": "default", "rope_theta": local},
        }
    for setting, value in rope.items():
        raise _unknown(header.architecture, setting, value, name)
    return parameters, rest


def _scaling(
    rope: dict[str, Any], settings: Mapping[str, Any], architecture: str, name: str
) -> dict[str, Any]:
    """Parameters of the settings `rope.scaling.*`, which are taken out of `rope`."""
    rope.pop("scaling.finetuned", None)
    kind, linear = rope.pop("scaling.type", "none"), rope.pop("scale_linear", 1.0)
    length = rope.pop("scaling.original_context_length", None)
    if kind == "none" and linear == 1.0:
        if length not in (None, settings.get("context_length")):
            raise _unknown(architecture, "scaling.original_context_length", length, name)
        return {}
    factor = float(rope.pop("scaling.factor", linear))
    if kind in ("none", "linear"):
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn" and length is not None:
        return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": length}
    raise _unknown(architecture, "scaling.type", kind, name)


def _of_factors(
    factors: Tensor, parameters: dict[str, Any], head: int, name: str
) -> dict[str, Any]:
    """Llama 3.1's scaling, from what each frequency is divided by: that of its config.json, if it
    makes the same numbers.
    """
    scaling = {"rope_type": "llama3", "factor": float(factors.max()), **_LLAMA_3}
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


def _frequencies(parameters: dict[str, Any], head: int) -> Tensor:
    """Angle by which each pair of a head turns a position."""
    base = torch.arange(0, head, 2, dtype=torch.int64).float() / head
    plain = 1.0 / parameters["rope_theta"] ** base
    if parameters["rope_type"] == "default":
        return plain
    config = LlamaConfig(
        head_dim=head, hidden_size=head, num_attention_heads=1, rope_parameters=parameters
    )
    return ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, torch.device("cpu"))[0]


def _unknown(architecture: str, setting: str, value: Any, name: str) -> InputError:
    return InputError(
        f"expected rotations that are known (none, linear, yarn with rope.scaling.original_context_length, Llama 3.1's), found "
        f"{architecture}.rope.{setting} = {short_repr(value)} in {name}: use the checkpoint that the file was made of"
    )
