"""Checkpoints in torchao's int8 weight-only format, read as the float32 weights that they stand for.

A matrix is stored as whole numbers q with a scale per output channel: W = scale (q - zero point). They stay in memory as they
are stored, and each operation makes the numbers that it reads (`Recast`). It is read here without torchao, whose tensors answer
only what their own kernel asks: on them W_O and the weights' hash raise, and `.to(float64)` returns float32 without a word.
What the model computes is the same to rounding.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int8, Shaped
from safetensors import safe_open
from torch import Tensor

from ostools.ground.errors import InputError
from ostools.models.placed.mapped import brought
from ostools.models.recast import SMALL_WEIGHT, Recast

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


def int8_weights(shards: Sequence[Path], dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    """The weights of a checkpoint by name, in `dtype` on that device: those of quantised matrices made where they are read.

    Memory: a byte for every number of a quantised matrix, those of at most `SMALL_WEIGHT` bytes and the other weights in
    `dtype`. Raises `InputError` for a tensor that is not as torchao writes its int8 weights.
    """
    stored: dict[str, Tensor] = {}
    written: dict[str, str] = {}
    for shard in shards:
        with safe_open(shard, "pt") as file:
            written |= file.metadata() or {}
            names = list(file.keys())
        for name in names:
            with safe_open(shard, "pt") as file:  # mapped for one weight at a time
                stored[name] = file.get_tensor(name).to(device, copy=True)
    weights = {}
    for name, text in written.items():
        kind = _description(text)
        if kind.get("_type") == "Int8Tensor":
            weights[name] = _weight(name, kind, stored, dtype)
    return weights | {name: weight.to(dtype) for name, weight in stored.items()}


def _description(text: str) -> dict[str, Any]:
    """What torchao wrote about a tensor; empty for the other entries of a file's header."""
    try:
        content = json.loads(text)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _weight(
    name: str, kind: Mapping[str, Any], stored: dict[str, Tensor], dtype: torch.dtype
) -> Float[Tensor, "out in"]:
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
    wide = [part.expand_as(q) for part in (scale, zero_point) if part is not None]
    weight: Tensor = Recast(partial(_made, dtype=dtype), (q, *wide), dtype)  # pyright: ignore[reportCallIssue]
    return weight.dense() if q.numel() * dtype.itemsize <= SMALL_WEIGHT else weight


def _made(
    q: Int8[Tensor, "*shape"],
    scale: Float[Tensor, "*shape"],
    zero_point: Shaped[Tensor, "*shape"] | None = None,
    *,
    dtype: torch.dtype,
) -> Float[Tensor, "*shape"]:
    """scale (q - zero point) in float32, then cast; as q lies in memory, by which a product sums."""
    made = brought(q, torch.float32, q.device)
    if zero_point is not None:
        made -= zero_point.float()
    made *= scale.float()
    return made.to(dtype)
