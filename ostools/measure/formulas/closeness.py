"""Check that numbers computed from the weights are those that the model itself computed; else `InputError`."""

from __future__ import annotations

import torch
from torch import Tensor

from ostools.ground.errors import InputError

_ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4}


class Closeness:
    """Comparison of numbers computed from the weights with the model's own, in one piece or in several.

    The model's own number has its dtype, which sets the rounding to be expected, relative to the largest.
    """

    def __init__(self, layer: int, what: str) -> None:
        self._layer, self._what = layer, what
        self._errors: list[Tensor] = []
        self._sizes: list[Tensor] = []
        self._rounding = 0.0

    def see(self, measured: Tensor, computed: Tensor) -> None:
        self._errors.append(_largest(measured - computed))
        self._sizes.append(_largest(computed))
        self._rounding = _ROUNDING[computed.dtype]

    def require(self) -> None:
        """Raises `InputError` where a number is further off than rounding, or not a number."""
        error, size = (float(torch.stack(numbers).max()) for numbers in (self._errors, self._sizes))
        if not error <= self._rounding * size:
            raise InputError(
                f"block {self._layer}: {self._what}, computed from the weights as read here, differs from the model's own by "
                f"{error:.2g} (values up to {size:.2g}); the formulas do not describe this model"
            )


def _largest(numbers: Tensor) -> Tensor:
    """max |x|, no number where one is none; in one walk, without a second tensor of absolute values."""
    low, high = torch.aminmax(numbers)
    return torch.maximum(-low, high)


def require_close(measured: Tensor, computed: Tensor, layer: int, what: str) -> None:
    """Require that numbers computed from the weights are those that the model itself computed."""
    close = Closeness(layer, what)
    close.see(measured, computed)
    close.require()
