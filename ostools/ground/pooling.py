"""Long prompts in few cells: neighbouring positions share one, which shows the greatest of their
values.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

Bins = tuple[tuple[int, int], ...]
"""Consecutive positions, as (start, end) with the end excluded."""


def bins_of(length: int, most: int) -> Bins:
    """Consecutive positions in at most `most` bins of equal width (the first may be narrower), the
    last position alone.
    """
    width = max(1, math.ceil((length - 1) / (most - 1)))
    starts = range((length - 1) % width - width if (length - 1) % width else 0, length - 1, width)
    return (*((max(start, 0), start + width) for start in starts), (length - 1, length))


def max_pool(values: torch.Tensor, bins: Bins, dim: int = -1) -> torch.Tensor:
    """The greatest value of each bin along one dimension."""
    import torch

    return torch.stack(
        [values.narrow(dim, start, end - start).amax(dim) for start, end in bins], dim=dim
    )


def pooling_rule(length: int, most: int) -> str:
    """How positions were reduced, in words; empty where they were not."""
    bins = bins_of(length, most)
    if len(bins) == length:
        return ""
    width = max(end - start for start, end in bins)
    return (
        f"{length} positions are max-pooled to {len(bins)}: {width} neighbours in one, the last "
        "token alone"
    )
