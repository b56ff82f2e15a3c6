"""Invariants of attention whatever is done to its scores: which keys are seen, and weights that sum
to 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ostools.hooks.register import hidden
from ostools.hooks.register import positions as positions
from ostools.mitigations.base import MitigationError

Scores = Float[Tensor, "batch head query key"]
VisibleKeys = Bool[Tensor, "query key"]

_SOFTMAX = 1e-5  # the softmax is computed in float32, whatever the model's dtype


def layers_of(record: Mapping[str, Any], name: str) -> Iterator[tuple[int, Scores, Scores]]:
    """Layers of a record, each with its pattern and its scores; `name` is the mitigation's, for the
    error.
    """
    try:
        patterns, scores = record["pattern"], record["scores"]
        pairs = [(layer, pattern, scores[layer]) for layer, pattern in patterns.items()]
    except (KeyError, TypeError, AttributeError):
        raise MitigationError(
            f"{name}.verify: expected a record with 'pattern' and 'scores' by layer, found "
            f"{sorted(record)}"
        ) from None
    yield from pairs


def causal(pattern: Scores) -> VisibleKeys:
    """Mask of the keys that a query may see: itself and those before it."""
    query, key = positions(pattern)
    return key <= query


def require_unseen(name: str, layer: int, pattern: Scores, unseen: VisibleKeys) -> None:
    """The weights of the keys in `unseen` are 0, not small. Raises `MitigationError` with the first
    that is not.
    """
    wrong = pattern.masked_fill(~unseen, 0.0).ne(0)  # NaN is not 0
    if bool(wrong.any()):
        where = _first(wrong)
        raise MitigationError(
            f"{name}: expected weights of exactly 0 on the keys that it hides, found "
            f"{float(pattern[where]):.3g} in layer {layer}, head {where[1]}, "
            f"{_edge(pattern, where)}"
        )


def require_unmasked(name: str, layer: int, scores: Scores, visible: VisibleKeys) -> None:
    """No score of the keys in `visible` is masked. Raises `MitigationError` with the
    first that is.
    """
    masked = hidden(scores) & visible
    if bool(masked.any()):
        where = _first(masked)
        raise MitigationError(
            f"{name}: expected that every key which it does not hide is seen, found one that "
            f"something else masks in layer {layer}, head {where[1]}, {_edge(scores, where)}"
        )


def require_rows_sum_to_one(name: str, layer: int, pattern: Scores) -> None:
    """Check that the weights of every query sum to 1, up to the rounding of the pattern's dtype.
    Raises `MitigationError`.
    """
    info = torch.finfo(pattern.dtype)
    # Rounding a weight costs half a step of its size, or of the smallest number that the dtype has.
    tolerance = info.eps + _SOFTMAX + pattern.shape[-1] * info.smallest_normal * info.eps
    sums = pattern.sum(-1, dtype=torch.float64)
    off = ~((sums - 1).abs() <= tolerance)  # written so that NaN fails too
    if bool(off.any()):
        batch, head, row = _first(off)
        query = pattern.shape[-1] - pattern.shape[-2] + row
        raise MitigationError(
            f"{name}: expected the weights of every query to sum to 1, found "
            f"{float(sums[batch, head, row]):.6g} in layer {layer}, head {head}, query {query}"
        )


def _first(where: Bool[Tensor, "*shape"]) -> tuple[int, ...]:
    return tuple(int(index) for index in where.nonzero()[0])


def _edge(pattern: Scores, where: tuple[int, ...]) -> str:
    return f"query {pattern.shape[-1] - pattern.shape[-2] + where[2]}, key {where[3]}"
