"""How much memory this process can still have, and what is done where it runs out: tried again in
smaller chunks, then refused in one line; on a CPU or a GPU.

In a container or under a batch system the machine's own figure is the host's: who believes it is
killed. A chunk never decides what is computed: numbers differ by the rounding of sums in another
order.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from ostools.ground.errors import InsufficientMemoryError, in_words

if TYPE_CHECKING:
    import torch

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")
_PROC, _CGROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")

_SHARE: ContextVar[float | None] = ContextVar("share", default=None)

_SHARES = (1.0, 1 / 2, 1 / 4, 1 / 8, 1 / 16)
"""The shares of a chunk in which a measurement is tried."""

# What torch's and safetensors' allocators write, and C++ where nobody caught it.
_MESSAGES = ("not enough memory", "allocate memory", "out of memory", "bad_alloc", "alloc_failed")


def available_memory(device: torch.device | None = None) -> int:
    """Bytes that this process can still have now: on a GPU, or (None too) in the least that the
    machine and the control groups that it is in leave.
    """
    if device is None or device.type != "cuda":
        import psutil  # not at the start of every command

        return min([psutil.virtual_memory().available, *cgroup_limits()])
    import torch

    return torch.cuda.mem_get_info(device)[0]


def return_freed_memory() -> None:
    """Return freed blocks to the system where the C library is glibc: some milliseconds.

    Called once, after a tokenizer was read. What a vocabulary of 262,000 tokens was read from would
    else stand beside the weights: Gemma 3 270M peaks at 2.40 GiB instead of 2.08, its forecast is
    2.17.
    """
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    if library is not None and hasattr(library, "malloc_trim"):
        library.malloc_trim(0)


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """Run the block without Python's collector of circular garbage, which would walk through the
    800,000 parts of a large vocabulary again and again. What is in no circle is let go at once all
    the same. Blocks nest, also across threads."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def cgroup_limits(proc: Path = _PROC, mounted: Path = _CGROUPS) -> Iterator[int]:
    """What the limit of each control group (v2) above this process leaves; a limit of one further
    up counts too.

    Cached files count as free where nobody read them lately: the kernel drops those first.
    """
    text = proc.read_text() if proc.exists() else ""
    # In a container the path may be the host's, of which only the root is mounted here.
    below = Path(match[1]) if (match := re.search(r"^0::/?(.*)$", text, re.MULTILINE)) else Path()
    for part in (below, *below.parents):
        group = mounted / part
        with suppress(OSError, ValueError):  # no such group, or one without a limit: "max"
            most = int((group / "memory.max").read_text())
            used = int((group / "memory.current").read_text())
            lines = (group / "memory.stat").read_text().splitlines()
            cached = int(dict(line.split() for line in lines).get("inactive_file", 0))
            yield max(most - used + cached, 0)


def keep_freed_memory() -> None:
    """Let glibc keep freed blocks of up to 31 MiB for the next allocation, which it does once a
    block of that size was freed.

    Else each chunk of a long computation is mapped and zeroed anew, which takes as long as the work
    on it.
    """
    bytearray(31 << 20)


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
    decides. No argument is an iterator: it is read more than once (`ground.arguments` lists it).
    """

    @functools.wraps(measurement)
    def fitted(*args: Parameters.args, **options: Parameters.kwargs) -> Returned:
        if _SHARE.get() is not None:  # who entered a block of `smaller_chunks` deals with it
            return measurement(*args, **options)
        import torch

        reason = ""
        for share in _SHARES:
            try:
                with smaller_chunks(share):
                    return measurement(*args, **options)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                reason = in_words(error)
            # Behind the handler: until then the error's traceback holds what did not fit.
            gc.collect()
            torch.cuda.empty_cache()
        raise InsufficientMemoryError(
            f"out of memory: {measurement.__name__} does not fit, even in chunks of a sixteenth; "
            f"{available_memory() / 2**30:.2f} GiB free ({reason}): shorten the prompt or take "
            "shorter lengths, load the model in bfloat16, or free memory"
        )

    return fitted
