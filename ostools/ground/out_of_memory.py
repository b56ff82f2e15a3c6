"""What needs more memory than there is: seen, tried again in smaller chunks, then refused in one
line; on a CPU or a GPU.

A chunk never decides what is computed: numbers differ by the rounding of sums in another order.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

from ostools.ground.errors import InsufficientMemoryError, in_words
from ostools.ground.memory import free_memory

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")

_SHARE: ContextVar[float | None] = ContextVar("share", default=None)

_SHARES = (1.0, 1 / 2, 1 / 4, 1 / 8, 1 / 16)
"""The shares of a chunk in which a measurement is tried."""

# What torch's and safetensors' allocators write, and C++ where nobody caught it.
_MESSAGES = ("not enough memory", "allocate memory", "out of memory", "bad_alloc", "alloc_failed")


def chunk(full: int) -> int:
    """`full` items or bytes at a time; the share of it that `smaller_chunks` leaves, and at least
    1.
    """
    return max(1, int(full * (_SHARE.get() or 1.0)))


@contextmanager
def smaller_chunks(share: float) -> Iterator[None]:
    """Within the block every chunk is that share of its size, 0 < share <= 1."""
    token = _SHARE.set(share)
    try:
        yield
    finally:
        _SHARE.reset(token)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, or was forecast to: by the error, or by what it was made of."""
    import torch  # whoever runs out of memory has it

    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError | torch.OutOfMemoryError | InsufficientMemoryError):
            return True
        # Not in our own words: they may quote a prompt or a file.
        if isinstance(cause, RuntimeError | OSError) and any(
            words in str(cause).lower() for words in _MESSAGES
        ):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def in_smaller_chunks(
    measurement: Callable[Parameters, Returned],
) -> Callable[Parameters, Returned]:
    """The measurement, tried again in chunks half as large where memory runs out, down to a
    sixteenth.

    Then `InsufficientMemoryError`, with what is free. Inside another such measurement that one
    decides.
    """

    @functools.wraps(measurement)
    def fitted(*args: Parameters.args, **options: Parameters.kwargs) -> Returned:
        if _SHARE.get() is not None:  # who entered a block of `smaller_chunks` deals with it
            return measurement(*args, **options)
        # Arguments are read more than once: an iterator as a list.
        places = [_listed(value) for value in args]
        keywords = {name: _listed(value) for name, value in options.items()}
        reason = ""
        for share in _SHARES:
            try:
                with smaller_chunks(share):
                    return measurement(*places, **keywords)  # pyright: ignore[reportCallIssue]
            except Exception as error:
                # A forecast says itself what does not fit and what to do.
                is_last_forecast = share == _SHARES[-1] and isinstance(
                    error, InsufficientMemoryError
                )
                if is_last_forecast or not is_out_of_memory(error):
                    raise
                reason = in_words(error)
            # Behind the handler: until then the error's traceback holds what did not fit.
            _free_what_is_left()
        raise InsufficientMemoryError(
            f"out of memory: {measurement.__name__} does not fit, even in chunks of a sixteenth; "
            f"{free_memory()} ({reason}): shorten the prompt or take shorter lengths, load the "
            "model in bfloat16, or free memory"
        )

    return fitted


def _listed(value: object) -> object:
    return list(value) if isinstance(value, Iterator) else value


def _free_what_is_left() -> None:
    """Give back what a measurement that failed still holds."""
    import torch

    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
