"""Chunked attention, as Llama 4 has it in most of its layers: the text is cut into chunks, and none
sees another.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from ostools import hooks
from ostools.mitigations import Mitigation, MitigationError
from ostools.mitigations.invariants import (
    causal,
    layers_of,
    positions,
    require_rows_sum_to_one,
    require_unseen,
)


@dataclass(frozen=True)
class ChunkedAttention(Mitigation):
    """Query i sees key j <= i if and only if both are in the same chunk: i // chunk == j // chunk.

    Raises `MitigationError` for a chunk < 1.
    """

    chunk: int = 32

    def __post_init__(self) -> None:
        if self.chunk < 1:
            raise MitigationError(
                f"ChunkedAttention: expected chunk of at least 1, found {self.chunk}"
            )

    def sees(self, query: Tensor, key: Tensor) -> Tensor:
        """Absolute positions, which broadcast: the same rule serves a whole prompt and a single
        step of generation.
        """
        return query // self.chunk == key // self.chunk

    def hooks(self, model: TransformerBridge) -> AbstractContextManager[None]:
        return hooks.mask_scores(model, self.sees)

    def verify(self, record: Mapping[str, Any]) -> None:
        """The weights outside the chunk are exactly 0, and what is left sums to 1."""
        for layer, pattern, _ in layers_of(record):
            seen = causal(pattern) & self.sees(*positions(pattern))
            require_unseen("ChunkedAttention", layer, pattern, ~seen)
            require_rows_sum_to_one("ChunkedAttention", layer, pattern)
