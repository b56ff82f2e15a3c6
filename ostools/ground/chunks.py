"""How much is computed at a time: a constant of each computation, and less of it where memory ran out.

A chunk never decides what is computed: numbers differ by the rounding of sums in another order.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_SHARE: ContextVar[float | None] = ContextVar("share", default=None)


def chunk(full: int) -> int:
    """`full` items or bytes at a time; the share of it that `smaller_chunks` leaves, and at least 1."""
    return max(1, int(full * (_SHARE.get() or 1.0)))


@contextmanager
def smaller_chunks(share: float) -> Iterator[None]:
    """Within the block every chunk is that share of its size, 0 < share <= 1."""
    token = _SHARE.set(share)
    try:
        yield
    finally:
        _SHARE.reset(token)


def is_decided() -> bool:
    """Whether a block of `smaller_chunks` is entered: who entered it deals with memory that runs out."""
    return _SHARE.get() is not None
