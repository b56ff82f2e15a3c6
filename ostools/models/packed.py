"""A matrix that is stored in few bits, and whose numbers are made where they are read, some rows at a time.

Four-bit formats put several numbers into one word, and give one scale to a group of numbers: there is no stored tensor of the
matrix's own shape, of which a view could be taken (`Recast`). A `Packed` tensor takes its views of the places of its numbers
instead: shape, strides and offset within the whole matrix. What is read of it is made out of the rows that it touches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ostools.models.recast import SMALL_WEIGHT, Recast

_AT_A_TIME = 1 << 20
"""Numbers that are unpacked in one go: what unpacking takes beside the matrix stays small."""
_LINE = 64
"""A row begins at the same place, modulo this many numbers, as in a matrix loaded whole: products then sum in one order."""


@dataclass(frozen=True)
class Stored:
    """A matrix [out, in] as a file holds it: `read(*parts, low, high)` gives its rows low to high, [high - low, in].

    `read` writes to no part. Parts may lie on disk or on another device: rows are made where the parts lie.
    """

    shape: tuple[int, int]
    parts: tuple[Tensor, ...]
    read: Callable[..., Float[Tensor, "rows in"]]

    def at(self, device: torch.device) -> Stored:
        """The same on that device, in memory of its own."""
        return replace(self, parts=tuple(part.to(device, copy=True) for part in self.parts))

    def weight(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        """The weight that it stands for: made where it is read, or once where it is small."""
        packed = Packed(self, dtype, device)
        return packed.dense() if packed.numel() * dtype.itemsize <= SMALL_WEIGHT else packed


class Packed(Recast):
    """Numbers of a stored matrix, or a view of them; on `device`, in `dtype`. A copy of it shares what is stored."""

    matrix: Stored

    @staticmethod
    def __new__(cls, matrix: Stored, dtype: torch.dtype, device: torch.device, where: Tensor | None = None) -> Packed:
        where = torch.empty(matrix.shape, device="meta") if where is None else where
        self = Tensor._make_wrapper_subclass(  # pyright: ignore[reportAttributeAccessIssue]
            cls, where.shape, strides=where.stride(), storage_offset=0, dtype=dtype, device=device
        )
        self.matrix, self.parts, self.whole = matrix, (where,), False
        return self

    @property
    def is_cast(self) -> bool:
        return False

    def dense(self) -> Tensor:
        """The numbers: of all rows that the view touches, then the view of them."""
        (where,) = self.parts
        if where.numel() == 0:
            return torch.empty(where.shape, dtype=self.dtype, device=self.device)
        width = self.matrix.shape[1]
        start = int(where.storage_offset())
        last = start + sum((size - 1) * stride for size, stride in zip(where.shape, where.stride(), strict=True))
        low, high = start // width, last // width + 1
        lead = low * width % _LINE
        made = torch.empty(lead + (high - low) * width, dtype=self.dtype, device=self.device)
        rows, step = made[lead:].view(high - low, width), max(1, _AT_A_TIME // width)
        for row in range(low, high, step):
            end = min(row + step, high)
            rows[row - low : end - low].copy_(self.matrix.read(*self.matrix.parts, row, end))
        return made.as_strided(where.shape, where.stride(), lead + start - low * width)

    def rows(self, ids: Tensor) -> Tensor:
        each, of = ids.unique(return_inverse=True)
        return torch.stack([self[row].dense() for row in each.tolist()])[of]  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def stored(self) -> Tensor:
        return self.matrix.parts[0]

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        made: Tensor = self._of(self.parts)
        made = nn.Parameter(made, self.requires_grad) if isinstance(self, nn.Parameter) else made
        memo[id(self)] = made
        return made

    def _of(self, parts: tuple[Tensor, ...]) -> Packed:
        return Packed(self.matrix, self.dtype, self.device, *parts)
