"""Checkpoints in torchao's int8 weight-only format, read as the float32 weights that they stand for.

A matrix is stored as whole numbers q with a scale per output channel: W = scale (q - zero point). It is read here without
torchao, whose tensors answer only what their own kernel asks: on them W_O and the weights' hash raise, and `.to(float64)`
returns float32 without a word. What the model computes is the same to rounding.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors import safe_open
from torch import Tensor

from ostools.ground.errors import InputError

INT8_WEIGHT_ONLY = "Int8WeightOnlyConfig"
_PARTS = {"qdata", "scale", "zero_point"}


def check_quantisation(config: Mapping[str, Any], directory: Path) -> str | None:
    """The quantisation of the checkpoint, None in full precision; `InputError` for one that is not read here.

    Only weight-only int8 is: where activations are quantised too, the weights do not say what the model computes.
    """
    settings = config.get("quantization_config")
    if settings is None:
        return None
    settings = settings if isinstance(settings, dict) else {}
    method, kinds = settings.get("quant_method"), settings.get("quant_type")
    default = kinds.get("default") if isinstance(kinds, dict) and len(kinds) == 1 else kinds
    kind = default.get("_type") if isinstance(default, dict) else default
    if (method, kind) != ("torchao", INT8_WEIGHT_ONLY):
        raise InputError(
            f"expected full-precision weights or torchao's {INT8_WEIGHT_ONLY}, found a quantised checkpoint "
            f"({method}, {kind}) in {directory}: use the original, or dequantise it and save it in full precision"
        )
    return f"torchao {kind}, dequantised"


def dequantised(shards: Sequence[Path]) -> dict[str, Tensor]:
    """The weights of a checkpoint by name: quantised ones as float32, the others as they are stored.

    Memory: every weight, in float32 where it was int8. Raises `InputError` for a tensor that is not as torchao writes its
    int8 weights.
    """
    stored: dict[str, Tensor] = {}
    written: dict[str, str] = {}
    for shard in shards:
        with safe_open(shard, "pt") as file:
            written |= file.metadata() or {}
            stored |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (a file is no mapping)
    weights = {}
    for name, text in written.items():
        kind = _description(text)
        if kind.get("_type") == "Int8Tensor":
            weights[name] = _weight(name, kind, stored)
    return weights | stored


def _description(text: str) -> dict[str, Any]:
    """What torchao wrote about a tensor; empty for the other entries of a file's header."""
    try:
        content = json.loads(text)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _weight(name: str, kind: Mapping[str, Any], stored: dict[str, Tensor]) -> Float[Tensor, "out in"]:
    """W = scale (q - zero point) of one matrix; takes its parts out of `stored`."""
    prefix, _, last = name.rpartition(".")
    settings, names = kind.get("_data", {}), set(kind.get("_tensor_data_names", ()))
    parts = {part: stored.pop(f"{prefix}._{last}_{part}", None) for part in names}
    q, scale, zero_point = (parts.get(part) for part in ("qdata", "scale", "zero_point"))
    if (
        q is None
        or scale is None
        or not names <= _PARTS
        or q.dtype != torch.int8
        or q.ndim != 2
        or settings.get("block_size") != [1, q.shape[1]]
        or settings.get("act_quant_kwargs") is not None
        or any(part is None or part.shape != (q.shape[0], 1) for key, part in parts.items() if key != "qdata")
    ):
        raise InputError(
            f"expected {name} as int8 with a scale per output channel, found {sorted(names)} with {settings}: "
            "dequantise the model with torchao and save it in full precision"
        )
    shifted = q.float() if zero_point is None else q.float() - zero_point.float()
    return shifted * scale.float()
