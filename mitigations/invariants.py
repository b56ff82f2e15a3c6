"""Invariants of attention whatever is done to its scores: which keys are seen, and weights that sum
to 1.
"""

from collections.abc import Iterator, Mapping

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ostools.hooks.precision import hidden
from ostools.hooks.precision import positions as positions
from ostools.mitigations.base import MitigationError

Scores = Float[Tensor, "batch head query key"]
VisibleKeys = Bool[Tensor, "query key"]

_SOFTMAX = 1e-5  # the softmax is computed in float32, whatever the model's dtype


def layers_of(record: Mapping[str, Mapping[int, Scores]]) -> Iterator[tuple[int, Scores, Scores]]:
    """Layers of a record, each with its pattern and its scores."""
    for layer, pattern in record["pattern"].items():
        yield layer, pattern, record["scores"][layer]


def causal(pattern: Scores) -> VisibleKeys:
    """Mask of the keys that a query may see: itself and those before it."""
    query, key = positions(pattern)
    return key <= query


def require_unseen(name: str, layer: int, pattern: Scores, unseen: VisibleKeys) -> None:
    """The weights of the keys in `unseen` are 0, not small. Raises `MitigationError` with the first
    that is not.
    """
    wrong = pattern.masked_fill(~unseen, 0.0).ne(0)  # NaN is not 0
    _refuse_any(
        wrong, f"{name}: expected weights of exactly 0 on the keys that it hides", layer, pattern
    )


def require_unmasked(name: str, layer: int, scores: Scores, visible: VisibleKeys) -> None:
    """No score of the keys in `visible` is masked. Raises `MitigationError` with the
    first that is.
    """
    expected = f"{name}: expected that every key which it does not hide is seen"
    _refuse_any(hidden(scores) & visible, expected, layer, scores)


def require_rows_sum_to_one(name: str, layer: int, pattern: Scores) -> None:
    """Check that the weights of every query sum to 1, up to the rounding of the pattern's dtype.
    Raises `MitigationError`.
    """
    info = torch.finfo(pattern.dtype)
    # Rounding a weight costs half a step of its size, or of the smallest number that the dtype has.
    tolerance = info.eps + _SOFTMAX + pattern.shape[-1] * info.smallest_normal * info.eps
    sums = pattern.sum(-1, dtype=torch.float64)
    off = ~((sums - 1).abs() <= tolerance)  # written so that NaN fails too
    _refuse_any(off, f"{name}: expected the weights of every query to sum to 1", layer, pattern)


def _refuse_any(
    wrong: Bool[Tensor, "batch head query *key"], expected: str, layer: int, pattern: Scores
) -> None:
    """Raise `MitigationError` with the place of the first that is wrong."""
    if not bool(wrong.any()):
        return
    _, head, row, *key = wrong.nonzero()[0].tolist()
    query = pattern.shape[-1] - pattern.shape[-2] + row
    at_key = f", key {key[0]}" if key else ""
    raise MitigationError(
        f"{expected}, found otherwise in layer {layer}, head {head}, query {query}{at_key}"
    )
