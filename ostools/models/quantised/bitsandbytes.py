"""Checkpoints that bitsandbytes quantised: numbers of 4 bits (NF4, FP4), and int8 (LLM.int8).

4 bits: two numbers to a byte, row by row, the first in the high bits; W = code[q] absmax of its block of 64 (or so) numbers,
rounded to the dtype that the model had. With double quantisation absmax is itself stored in 8 bits: code'[absmax] absmax' +
offset. LLM.int8: W = q scale / 127 with a scale per output channel.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int8, Shaped, UInt8
from torch import Tensor

from ostools.models.packed import Stored
from ostools.models.quantised.taking import Tensors, owners, refusal, require, taken
from ostools.theory.distances import DTYPES

_KINDS = ("nf4", "fp4")
_STATE = "weight.quant_state.bitsandbytes__"
_127TH = 0.007874015718698502
"""1/127 in float32, as bitsandbytes has it."""


def words(settings: Mapping[str, Any]) -> str | None:
    """What is read, in words."""
    if settings.get("load_in_4bit") is True:
        return f"bitsandbytes {settings.get('bnb_4bit_quant_type')}, dequantised"
    if settings.get("load_in_8bit") is True:
        return "bitsandbytes LLM.int8, weights dequantised; activations, which its own kernel rounds to int8, are not"
    return None


def matrices(settings: Mapping[str, Any], tensors: Tensors, written: Mapping[str, str]) -> dict[str, Stored]:
    found = {}
    for kind in _KINDS:
        for owner in owners(tensors, _STATE + kind):
            found[f"{owner}.weight"] = _four_bits(owner, kind, tensors)
    for owner in owners(tensors, "SCB"):
        found[f"{owner}.weight"] = _int8(owner, tensors)
    return found


def _four_bits(owner: str, kind: str, tensors: Tensors) -> Stored:
    name, as_written = f"{owner}.weight", f"as bitsandbytes writes its {kind} matrices"
    q, absmax, code, state = taken(tensors, owner, "weight", "weight.absmax", "weight.quant_map", _STATE + kind)
    try:
        told = json.loads(bytes(state.tolist()))
        (n_out, n_in), size, dtype = map(int, told["shape"]), int(told["blocksize"]), DTYPES[told["dtype"]]
        nested = int(told["nested_blocksize"]) if "nested_blocksize" in told else None
        offset = float(told["nested_offset"]) if nested else 0.0
    except (ValueError, KeyError, TypeError) as error:
        raise refusal(name, as_written, f"a quant_state that it cannot read ({error!r})") from None
    require(min(n_out, n_in, nested or 1) > 0 and size > 0 and size % 2 == 0, name, as_written, q, state)
    q = q.contiguous().flatten().view(torch.uint8)
    blocks = -(-n_out * n_in // size)
    scales = (absmax,)
    if nested:
        scales = (absmax, *taken(tensors, owner, "weight.nested_absmax", "weight.nested_quant_map"))
        require(scales[1].shape == (-(-blocks // nested),) and scales[2].shape == (256,), name, as_written, *scales)
    good = 2 * q.numel() == n_out * n_in + n_out * n_in % 2 and absmax.shape == (blocks,) and code.shape == (16,)
    require(good and absmax.dtype == (torch.uint8 if nested else torch.float32), name, as_written, q, absmax, code)
    read = partial(_rows_of_4_bits, size=size, nested=nested, offset=offset, n_in=n_in, dtype=dtype)
    return Stored((n_out, n_in), (q, code, *scales), read)


def _rows_of_4_bits(
    q: UInt8[Tensor, " bytes"],
    code: Float[Tensor, " 16"],
    absmax: Shaped[Tensor, " blocks"],
    *rest: Any,
    size: int,
    nested: int | None,
    offset: float,
    n_in: int,
    dtype: torch.dtype,
) -> Float[Tensor, "rows in"]:
    """code[q] absmax in float32, rounded to the dtype that the model had when it was quantised."""
    *scales, low, high = rest
    start, end = low * n_in, high * n_in
    first = start // size  # the numbers of whole blocks, of which a row may begin or end in the middle
    bytes_ = q[first * size // 2 : -(-end // size) * size // 2]
    numbers = code[torch.stack((bytes_ >> 4, bytes_ & 15), -1).flatten().int()]
    of_block = torch.arange(first, -(-end // size), device=q.device)
    largest = absmax[of_block]
    if nested:
        largest = scales[1][largest.int()] * scales[0][of_block // nested] + offset
    made = numbers * largest.repeat_interleave(size)[: numbers.numel()]
    return made[start - first * size : end - first * size].to(dtype).view(-1, n_in)


def _int8(owner: str, tensors: Tensors) -> Stored:
    q, scale = taken(tensors, owner, "weight", "SCB")
    order = tensors.pop(f"{owner}.weight_format", None)
    good = q.dtype == torch.int8 and q.ndim == 2 and scale.shape == q.shape[:1] and (order is None or int(order) == 0)
    require(good, f"{owner}.weight", "as int8, row by row, with a scale per output channel", q, scale)
    return Stored((q.shape[0], q.shape[1]), (q, scale), _rows_of_int8)


def _rows_of_int8(
    q: Int8[Tensor, "out in"], scale: Float[Tensor, " out"], low: int, high: int
) -> Float[Tensor, "rows in"]:
    return q[low:high] * scale[low:high, None].float() * _127TH
