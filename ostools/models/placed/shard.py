"""A safetensors file as its header describes it: which tensors stand where, and their numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ostools.ground.errors import InputError
from ostools.ground.files import open_regular

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""The dtypes that checkpoints are stored in, by their names in a header."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as a header describes it: its dtype there, its shape, and the bytes of the file from `start` to `end`."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def count(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Shard:
    """A safetensors file: its tensors by name."""

    file: Path
    tensors: Mapping[str, StoredTensor]

    def read(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor by name, in memory of its own, in the order in which the file holds them. The file is opened once.

        A tensor of a dtype that no model is stored in is left out.
        """
        with open_regular(self.file) as file:
            for name, stored in sorted(self.tensors.items(), key=lambda item: item[1].start):
                if stored.dtype not in DTYPES:
                    continue
                numbers = torch.empty(stored.end - stored.start, dtype=torch.uint8)
                file.seek(stored.start)
                if file.readinto(numbers.numpy()) != len(numbers):  # pyright: ignore[reportAttributeAccessIssue]
                    raise InputError(f"expected a whole safetensors file, found {self.file} cut while it was read")
                yield name, numbers.view(DTYPES[stored.dtype]).view(stored.shape)
