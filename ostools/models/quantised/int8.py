"""Checkpoints in torchao's int8 weight-only format.

A matrix is stored as whole numbers q with a scale per output channel: W = scale (q - zero point). It is read here without
torchao, whose tensors answer only what their own kernel asks: on them W_O and the weights' hash raise, and `.to(float64)`
returns float32 without a word. What the model computes is the same to rounding.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float, Int8, Shaped
from torch import Tensor

from ostools.models.packed import Stored
from ostools.models.quantised.taking import Tensors, refusal

INT8_WEIGHT_ONLY = "Int8WeightOnlyConfig"
_PARTS = {"qdata", "scale", "zero_point"}


def words(settings: Mapping[str, Any]) -> str | None:
    """Weight-only int8 alone: with quantised activations the weights do not say what the model computes."""
    kinds = settings.get("quant_type")
    default = kinds.get("default") if isinstance(kinds, dict) and len(kinds) == 1 else kinds
    kind = default.get("_type") if isinstance(default, dict) else default
    return f"torchao {kind}, dequantised" if kind == INT8_WEIGHT_ONLY else None


def matrices(settings: Mapping[str, Any], tensors: Tensors, written: Mapping[str, str]) -> dict[str, Stored]:
    """Those that torchao describes in the header of a file."""
    kinds = {name: _description(text) for name, text in written.items()}
    return {name: _matrix(name, kind, tensors) for name, kind in kinds.items() if kind.get("_type") == "Int8Tensor"}


def _description(text: str) -> dict[str, Any]:
    """What torchao wrote about a tensor; empty for the other entries of a file's header."""
    try:
        content = json.loads(text)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _matrix(name: str, kind: Mapping[str, Any], tensors: Tensors) -> Stored:
    prefix, _, last = name.rpartition(".")
    settings, names = kind.get("_data", {}), set(kind.get("_tensor_data_names", ()))
    parts = {part: tensors.pop(f"{prefix}._{last}_{part}", None) for part in names}
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
        raise refusal(name, "as int8 with a scale per output channel", f"{sorted(names)} with {settings}")
    scales = (scale,) if zero_point is None else (scale, zero_point)
    return Stored((q.shape[0], q.shape[1]), (q, *scales), _rows)


def _rows(q: Int8[Tensor, "out in"], scale: Shaped[Tensor, "out 1"], *rest: Any) -> Float[Tensor, "rows in"]:
    """scale (q - zero point) in float32."""
    *zero_point, low, high = rest
    rows = q[low:high].float()
    for zero in zero_point:
        rows -= zero[low:high].float()
    return rows * scale[low:high].float()
