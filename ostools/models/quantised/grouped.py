"""GPTQ and AWQ checkpoints: whole numbers of 2, 4 or 8 bits in words of 32, a scale and a zero point for a group of inputs.

W[o, i] = scale[g(i), o] (q[o, i] - zero[g(i), o]), rounded to the scales' dtype, as both libraries do. GPTQ packs along the
inputs, AWQ along the outputs and in an order of its own. GPTQ's first format stores each zero point less 1, its second
as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int, Int32
from torch import Tensor

from ostools.models.packed import Stored
from ostools.models.quantised.taking import Tensors, owners, refusal, require, taken, unpacked

_BITS = (2, 4, 8)
_FORMATS = ("gptq", "gptq_v2")
_AWQ_SHIFTS = (0, 16, 4, 20, 8, 24, 12, 28)
"""Where AWQ puts the eight numbers of a word."""


def gptq_words(settings: Mapping[str, Any]) -> str | None:
    bits, kind = settings.get("bits"), settings.get("checkpoint_format") or settings.get("format") or "gptq"
    read = bits in _BITS and kind in _FORMATS and settings.get("pack_dtype") in (None, "int32")
    return f"GPTQ {bits} bits, dequantised" if read and not settings.get("dynamic") else None


def awq_words(settings: Mapping[str, Any]) -> str | None:
    bits, kind = settings.get("bits", settings.get("w_bit")), settings.get("version", "gemm")
    return "AWQ 4 bits, dequantised" if bits == 4 and str(kind).lower() == "gemm" else None


def gptq_matrices(settings: Mapping[str, Any], tensors: Tensors, written: Mapping[str, str]) -> dict[str, Stored]:
    bits = int(settings["bits"])
    first = (settings.get("checkpoint_format") or settings.get("format") or "gptq") == "gptq"
    return {f"{owner}.weight": _gptq(owner, tensors, bits, first) for owner in owners(tensors, "qweight")}


def _gptq(owner: str, tensors: Tensors, bits: int, first: bool) -> Stored:
    name, per_word = f"{owner}.weight", 32 // bits
    q, zeros, scales, group = taken(tensors, owner, "qweight", "qzeros", "scales", "g_idx")
    n_in, n_out = q.shape[0] * per_word, q.shape[-1]
    good = (
        q.dtype == zeros.dtype == torch.int32
        and scales.is_floating_point()
        and scales.shape[1:] == (n_out,)
        and zeros.shape == (scales.shape[0], -(-n_out // per_word))
        and group.shape == (n_in,)
        and 0 <= int(group.min()) <= int(group.max()) < scales.shape[0]
    )
    require(good, name, f"as GPTQ packs {bits} bits", q, zeros, scales, group)
    if first and bool((unpacked(zeros, range(0, 32, bits), bits)[:, :n_out] == 2**bits - 1).any()):
        raise refusal(
            name,
            f"with zero points that every reader of GPTQ's first format reads alike, 1 to {2**bits - 1}",
            f"one stored as {2**bits - 1}, which AutoGPTQ reads as 0 and GPTQModel carries into the next one",
        )
    return Stored((n_out, n_in), (q, zeros, scales, group.int()), partial(_gptq_rows, bits=bits, added=int(first)))


def _gptq_rows(
    q: Int32[Tensor, "words out"],
    zeros: Int32[Tensor, "groups words_out"],
    scales: Float[Tensor, "groups out"],
    group: Int32[Tensor, " in"],
    low: int,
    high: int,
    *,
    bits: int,
    added: int,
) -> Float[Tensor, "rows in"]:
    shifts, per_word = range(0, 32, bits), 32 // bits
    first = low // per_word
    zero = unpacked(zeros[:, first : -(-high // per_word)], shifts, bits)[:, low - first * per_word :][:, : high - low]
    return _dequantised(unpacked(q[:, low:high].t(), shifts, bits), zero + added, scales[:, low:high], group)


def awq_matrices(settings: Mapping[str, Any], tensors: Tensors, written: Mapping[str, str]) -> dict[str, Stored]:
    return {f"{owner}.weight": _awq(owner, tensors) for owner in owners(tensors, "qweight")}


def _awq(owner: str, tensors: Tensors) -> Stored:
    q, zeros, scales = taken(tensors, owner, "qweight", "qzeros", "scales")
    n_in, n_out, groups = q.shape[0], q.shape[-1] * 8, scales.shape[0]
    good = (
        q.dtype == zeros.dtype == torch.int32
        and scales.is_floating_point()
        and scales.shape[1:] == (n_out,)
        and zeros.shape == (groups, q.shape[-1])
        and n_in % groups == 0
    )
    require(good, f"{owner}.weight", "as AWQ packs 4 bits", q, zeros, scales)
    group = torch.arange(n_in, dtype=torch.int32, device=q.device) // (n_in // groups)
    return Stored((n_out, n_in), (q, zeros, scales, group), _awq_rows)


def _awq_rows(
    q: Int32[Tensor, "in words"],
    zeros: Int32[Tensor, "groups words"],
    scales: Float[Tensor, "groups out"],
    group: Int32[Tensor, " in"],
    low: int,
    high: int,
) -> Float[Tensor, "rows in"]:
    first, last = low // 8, -(-high // 8)
    numbers, zero = (
        unpacked(each[:, first:last], _AWQ_SHIFTS, 4)[:, low - first * 8 :][:, : high - low] for each in (q, zeros)
    )
    return _dequantised(numbers.t(), zero, scales[:, low:high], group)


def _dequantised(
    q: Int[Tensor, "out in"],
    zero: Int[Tensor, "groups out"],
    scales: Float[Tensor, "groups out"],
    group: Int[Tensor, " in"],
) -> Float[Tensor, "out in"]:
    """scale (q - zero): one rounding, to the scales' dtype."""
    whole = (q - zero.t()[:, group]).float()
    return (whole * scales.t().float()[:, group]).to(scales.dtype)
