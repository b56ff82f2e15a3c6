"""Checkpoints in float8 (DeepSeek, Qwen 3 and whatever transformers writes as "fp8"), and those of compressed-tensors.

W = q scale, with a scale for a block of 128 x 128 numbers, an output channel, a group of inputs, or the whole matrix. fp8's
products are float32; compressed-tensors rounds them to the dtype of its scales. Both quantise activations too where the
checkpoint says so, which is not done here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from ostools.models.packed import Stored
from ostools.models.quantised.taking import Tensors, owners, require, spread, taken, unpacked

_FLOAT8 = torch.float8_e4m3fn
_WITHOUT = "weights dequantised; activations, which its own kernel rounds to {}, are not"


def fp8_words(settings: Mapping[str, Any]) -> str | None:
    block = settings.get("weight_block_size", [128, 128])
    sides = block is None or (isinstance(block, list) and len(block) == 2 and all(type(side) is int for side in block))
    return f"fp8, {_WITHOUT.format('fp8')}" if sides and settings.get("scale_fmt") in (None, "float") else None


def fp8_matrices(settings: Mapping[str, Any], tensors: Tensors, written: Mapping[str, str]) -> dict[str, Stored]:
    block, found = settings.get("weight_block_size", [128, 128]), {}
    for owner in owners(tensors, "weight_scale_inv"):
        q, scale = taken(tensors, owner, "weight", "weight_scale_inv")
        tensors.pop(f"{owner}.activation_scale", None)  # of activations, which are not quantised here
        found[f"{owner}.weight"] = _grid(f"{owner}.weight", q, scale, block, torch.float32)
    return found


def compressed_words(settings: Mapping[str, Any]) -> str | None:
    """Of compressed-tensors: float8, int8, and 4 or 8 bits packed without zero points, in one group of settings."""
    groups = settings.get("config_groups")
    group = next(iter(groups.values())) if isinstance(groups, dict) and len(groups) == 1 else None
    if not isinstance(group, dict) or not isinstance(group.get("weights"), dict):
        return None
    weights, kind = group["weights"], group.get("format") or settings.get("format")
    read = {
        "float-quantized": weights.get("type") == "float" and weights.get("num_bits") == 8,
        "int-quantized": weights.get("type") == "int" and weights.get("num_bits") == 8,
        "pack-quantized": weights.get("type") == "int" and weights.get("num_bits") in (4, 8),
    }
    beside = any(settings.get(name) for name in ("kv_cache_scheme", "sparsity_config", "transform_config"))
    moved = weights.get("actorder") not in (None, "static", "weight")
    if not read.get(str(kind)) or weights.get("symmetric") is not True or beside or moved:
        return None
    activations = group.get("input_activations")
    rounded = "int8" if isinstance(activations, dict) and activations.get("type") == "int" else "fp8"
    return f"compressed-tensors {kind}, {_WITHOUT.format(rounded) if activations else 'dequantised'}"


def compressed_matrices(settings: Mapping[str, Any], tensors: Tensors, written: Mapping[str, str]) -> dict[str, Stored]:
    (group,) = settings["config_groups"].values()
    weights, found = group["weights"], {}
    for owner in owners(tensors, "weight_scale"):
        name = f"{owner}.weight"
        if f"{owner}.weight_packed" in tensors:
            found[name] = _packed(owner, tensors, int(weights["num_bits"]))
            continue
        q, scale = taken(tensors, owner, "weight", "weight_scale")
        tensors.pop(f"{owner}.input_scale", None)  # of activations, which are not quantised here
        found[name] = _grid(name, q, scale, weights.get("block_structure"), scale.dtype)
    return found


def _grid(name: str, q: Tensor, scale: Tensor, block: Sequence[int] | None, dtype: torch.dtype) -> Stored:
    """A matrix with a scale for each block; without blocks one for each row, or one for all."""
    expected = (
        f"as float8_e4m3fn or int8 with a scale for {'each block of ' + str(block) if block else 'a row or all of it'}"
    )
    require(q.dtype in (_FLOAT8, torch.int8) and q.ndim == 2 and scale.is_floating_point(), name, expected, q, scale)
    n_out, n_in = q.shape
    if scale.numel() == 1:
        scale, block = scale.view(1, 1), (n_out, n_in)
    elif block is None:
        scale, block = scale.view(-1, 1) if scale.ndim == 1 else scale, (1, n_in)
    require(scale.shape == (-(-n_out // block[0]), -(-n_in // block[1])), name, expected, q, scale)
    return Stored((n_out, n_in), (q, scale), partial(_grid_rows, block=(block[0], block[1]), dtype=dtype))


def _grid_rows(
    q: Shaped[Tensor, "out in"],
    scale: Float[Tensor, "down across"],
    low: int,
    high: int,
    *,
    block: tuple[int, int],
    dtype: torch.dtype,
) -> Float[Tensor, "rows in"]:
    return (q[low:high].float() * spread(scale, block, low, high, q.shape[1])).to(dtype)


def _packed(owner: str, tensors: Tensors, bits: int) -> Stored:
    """Whole numbers packed along the inputs, with a scale for each group of them; the code 2^(bits - 1) is 0."""
    q, scale, shape = taken(tensors, owner, "weight_packed", "weight_scale", "weight_shape")
    n_out, n_in = (int(size) for size in shape.flatten().tolist())
    good = (
        q.dtype == torch.int32
        and q.shape == (n_out, -(-n_in * bits // 32))
        and scale.is_floating_point()
        and scale.ndim == 2
        and scale.shape[0] in (1, n_out)
        and n_in % scale.shape[1] == 0
    )
    require(good, f"{owner}.weight", f"as compressed-tensors packs {bits} bits", q, scale, shape)
    block = (1 if scale.shape[0] == n_out else n_out, n_in // scale.shape[1])
    return Stored((n_out, n_in), (q, scale), partial(_packed_rows, block=block, bits=bits))


def _packed_rows(
    q: Int[Tensor, "out words"],
    scale: Float[Tensor, "down across"],
    low: int,
    high: int,
    *,
    block: tuple[int, int],
    bits: int,
) -> Float[Tensor, "rows in"]:
    n_in = block[1] * scale.shape[1]
    numbers = unpacked(q[low:high], range(0, 32, bits), bits)[:, :n_in] - 2 ** (bits - 1)
    return (numbers.float() * spread(scale, block, low, high, n_in)).to(scale.dtype)
