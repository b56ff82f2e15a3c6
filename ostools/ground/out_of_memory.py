"""What needs more memory than there is: seen, tried again in smaller chunks, then refused in one
line; on a CPU or a GPU.

A chunk never decides what is computed: numbers differ by the rounding of sums in another order.
"""

from __future__ import annotations

import errno
import functools
import gc
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

from ostools.ground.errors import InsufficientMemoryError, in_words
from ostools.ground.memory import free_memory

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")

_SHARE: ContextVar[float | None] = ContextVar("share", default=None)

SMALLEST = 1 / 16
"""The share of a chunk below which a measurement that does not fit is given up."""

# What torch's and safetensors' allocators write, and C++ where nobody caught it.
_MESSAGES = (
    "not enough memory",
    "allocate memory",
    "out of memory",
    "bad_alloc",
    "cublas_status_alloc_failed",
)


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
    """Whether memory ran out, or was forecast to: by the error itself, or by what it was made of
    (whoever's word for it).
    """
    import torch  # whoever runs out of memory has it

    seen_ids: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen_ids:
        seen_ids.add(id(cause))
        if isinstance(cause, MemoryError | torch.OutOfMemoryError | InsufficientMemoryError):
            return True
        if isinstance(cause, OSError) and cause.errno == errno.ENOMEM:
            return True
        # Not in our own words: they may quote a prompt or a file.
        foreign = isinstance(cause, RuntimeError | OSError) or type(cause).__module__.startswith(
            "safetensors"
        )
        if foreign and any(word in str(cause).lower() for word in _MESSAGES):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def in_smaller_chunks(
    measurement: Callable[Parameters, Returned],
) -> Callable[Parameters, Returned]:
    """The measurement, tried again in chunks half as large where memory runs out, down to a
    sixteenth.

    Then `InsufficientMemoryError`, with what is free. The share of the chunks that fitted is in the
    result's provenance, as "chunk_share". Inside another such measurement, or a cell of a sweep,
    that one decides.
    """

    @functools.wraps(measurement)
    def fitted(*args: Parameters.args, **options: Parameters.kwargs) -> Returned:
        if _SHARE.get() is not None:  # who entered a block of `smaller_chunks` deals with it
            return measurement(*args, **options)
        # Arguments are read more than once: an iterator as a list.
        lists: Any = [
            list(value) if isinstance(value, Iterator) else value
            for value in (*args, *options.values())
        ]
        positional, named = lists[: len(args)], dict(zip(options, lists[len(args) :], strict=True))
        result, share = chunks_that_fit(
            functools.partial(measurement, *positional, **named),
            lambda error: _lacking(
                measurement.__name__,
                inspect.signature(measurement).bind(*positional, **named).arguments,
                error,
            ),
        )
        return result if share == 1.0 else _with_share(result, share)

    return fitted


def chunks_that_fit(
    work: Callable[[], Returned], refusal: Callable[[BaseException], InsufficientMemoryError]
) -> tuple[Returned, float]:
    """The value of `work`, tried again in chunks half as large where memory runs out, and the share
    of a chunk that fitted.

    Below a sixteenth it raises the refusal that is made of the first error.
    """
    share, first = 1.0, None
    while share >= SMALLEST:
        try:
            with smaller_chunks(share):
                return work(), share
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            first = first or refusal(error)
        free_what_is_left()  # behind the handler: until then the error's traceback holds what did not fit
        share /= 2
    raise first or MemoryError


def free_what_is_left() -> None:
    """Give back what a measurement that failed still holds."""
    import torch

    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def shorter_ways(arguments: Mapping[str, Any]) -> Iterator[str]:
    """Ways to a call that takes less memory, in words."""
    if any(arguments.get(name) is not None for name in ("prompt", "prompts")):
        yield "shorten the prompt"
    if "lengths" in arguments:
        yield "take shorter lengths"


def _lacking(
    name: str, arguments: Mapping[str, Any], error: BaseException
) -> InsufficientMemoryError:
    """The refusal; one that says itself what was forecast and what to do stays as it is."""
    if isinstance(error, InsufficientMemoryError):
        return InsufficientMemoryError(str(error))
    ways = [*shorter_ways(arguments)]
    model = arguments.get("model")
    if model is not None and next(model.parameters()).dtype.itemsize > 2:
        ways.append("load the model in bfloat16")
    return InsufficientMemoryError(
        f"out of memory: {name} does not fit, even in chunks of a sixteenth; {_limit()} ({in_words(error)}): "
        f"{', '.join([*ways, 'or free memory'])}"
    )


def _limit() -> str:
    import torch

    if torch.cuda.is_initialized():
        return f"{torch.cuda.mem_get_info()[0] / 2**30:.2f} GiB free on the GPU, {free_memory()}"
    return str(free_memory())


def _with_share(returned: Returned, share: float) -> Returned:
    result: Any = returned
    if isinstance(result, list):
        return [_with_share(part, share) for part in result]  # pyright: ignore[reportReturnType]
    provenance: Any = getattr(result, "provenance", None)
    if provenance is None:
        return returned
    parameters = {**provenance.parameters, "chunk_share": share}
    # A result of several prompts holds each prompt's own.
    part_fields = (
        {"results": tuple(_with_share(item, share) for item in result.results)}
        if hasattr(result, "results")
        else {}
    )
    return replace(result, provenance=replace(provenance, parameters=parameters), **part_fields)
