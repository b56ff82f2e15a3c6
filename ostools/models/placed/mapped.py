"""The weights of safetensors files as they lie on disk: read where they are needed, and never held."""

from __future__ import annotations

import mmap
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ostools.models.placed.shard import DTYPES, Shard

_LINE = 64
"""Bytes at whose multiples torch's own memory begins."""


@dataclass(frozen=True)
class MappedWeights:
    """The weights of some files by name, as they are stored: their numbers are the files' own pages.

    A file is mapped for reading alone, so that its pages count under no limit on what a process allocates, and the kernel may
    drop them whenever it needs the room. Whoever writes to such a tensor ends the process; so does whoever cuts a file short
    while it is mapped. Memory: none of its own.
    """

    by_name: dict[str, Tensor]
    _files: list[np.memmap]

    @classmethod
    def of(cls, shards: Sequence[Shard]) -> MappedWeights:
        """Those of these files; a tensor of a dtype that no model is stored in is left out."""
        weights, files = {}, []
        for shard in shards:
            pages = np.memmap(shard.file, mode="r")
            files.append(pages)
            for name, stored in shard.tensors.items():
                if stored.dtype in DTYPES:
                    numbers = _tensor_of(pages[stored.start : stored.end]).view(DTYPES[stored.dtype])
                    weights[name] = numbers.view(stored.shape)
        return cls(weights, files)

    def let_go(self) -> None:
        """Give back the pages that were read; whoever reads them again finds them in the kernel's cache, or on disk."""
        if hasattr(mmap, "MADV_DONTNEED"):  # no such advice on Windows
            for pages in self._files:
                pages._mmap.madvise(mmap.MADV_DONTNEED)  # pyright: ignore[reportAttributeAccessIssue]


def _tensor_of(pages: np.ndarray) -> Tensor:
    with warnings.catch_warnings():  # that the pages cannot be written to: no weight is
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(pages)


def brought(part: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A stored weight, or a view of one, as the same tensor in `dtype` on `device`, in memory of its own.

    Same strides, and the same place within a cache line: a matrix product sums in another order where a matrix begins at
    another place, and what comes out would differ from a loaded model's in its last bits. Memory: what lies between the first
    and the last number of the view.
    """
    if part.numel() == 0:
        return part.to(device, dtype, copy=True)
    span = 1 + sum((size - 1) * stride for size, stride in zip(part.shape, part.stride(), strict=True))
    lead = part.storage_offset() % _LINE
    buffer = torch.empty(lead + span, dtype=dtype, device=device)
    buffer[lead:].copy_(part.as_strided((span,), (1,), part.storage_offset()))
    return buffer.as_strided(part.shape, part.stride(), lead)
