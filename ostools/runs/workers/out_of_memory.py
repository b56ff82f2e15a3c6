"""A cell that needs more memory than there is: seen, tried again in smaller chunks, and never the end of the whole sweep."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import torch

from ostools.ground.errors import InsufficientMemoryError
from ostools.ground.memory import free_memory

# What torch's and safetensors' allocators write, and C++ where nobody caught it.
_SAID = ("not enough memory", "allocate memory", "out of memory", "bad_alloc", "cublas_status_alloc_failed")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, or was forecast to: by the error itself, or by what it was made of (whoever's word for it)."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        if isinstance(found, MemoryError | torch.OutOfMemoryError | InsufficientMemoryError):
            return True
        if isinstance(found, OSError) and found.errno == errno.ENOMEM:
            return True
        # Not in our own words: they may quote a prompt or a file.
        foreign = isinstance(found, RuntimeError | OSError) or type(found).__module__.startswith("safetensors")
        if foreign and any(word in str(found).lower() for word in _SAID):
            return True
        found = found.__cause__ or found.__context__
    return False


@contextmanager
def held_to_what_is_free(device: str) -> Iterator[None]:
    """Within the block an allocation beyond what is free now fails, where the kernel would otherwise kill the process.

    Linux gives out memory that it does not have, and ends who uses it: no error, no record, no next cell. Through RLIMIT_DATA,
    so on Linux alone. For a GPU, whose driver reserves addresses without end and whose own allocations do fail: nothing.
    """
    if sys.platform != "linux" or not device.startswith("cpu"):
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = psutil.Process().memory_info().data + free_memory().bytes
    within = [limit for limit in (soft, hard, most) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(within), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
