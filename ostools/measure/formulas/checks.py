"""The check that every formula stands on: what is computed from the weights is what the model itself computed."""

from __future__ import annotations

import torch
from torch import Tensor

from ostools.ground.errors import InputError

_ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4}


def require_close(found: Tensor, computed: Tensor, layer: int, what: str) -> None:
    """`computed` is the model's own, in its dtype, which sets the rounding to be expected; `InputError` beyond it."""
    size = float(computed.abs().max())
    error = float((found - computed).abs().max())
    if not error <= _ROUNDING[computed.dtype] * size:
        raise InputError(
            f"block {layer}: {what}, computed from the weights as read here, differs from the model's own by {error:.2g} "
            f"(values up to {size:.2g}); the formulas do not describe this model"
        )
