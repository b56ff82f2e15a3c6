"""How much memory this process can still have: of the machine's, and under every limit that was put on the process.

In a container or under a batch system the machine's own figure is the host's: who believes it is killed.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from ostools.ground.errors import InputError

if TYPE_CHECKING:
    import torch

_DRAWING = (
    68 << 30
)  # twice the 32 GiB of V8's heap, to find an aligned half, and what goes beside it; little of it is used
_PROC, _CGROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Free:
    """Bytes, at least 0, and what sets them, in words."""

    bytes: int
    of: str

    def __str__(self) -> str:
        return f"{self.bytes / 2**30:.2f} GiB free {self.of}"


def available_memory(device: torch.device) -> int:
    """Bytes that this process can still have on the device now."""
    if device.type != "cuda":
        return free_memory().bytes
    import torch

    return torch.cuda.mem_get_info(device)[0]


def free_memory() -> Free:
    """The least that anything leaves: the machine, RLIMIT_AS, RLIMIT_DATA, or a control group (v1 or v2) this process is in."""
    machine = Free(psutil.virtual_memory().available, "on this machine")
    return min([machine, *_resource_limits(), *cgroup_limits()], key=lambda limit: limit.bytes)


@cache
def require_room_to_draw() -> None:
    """Raises `InputError` where the first chart would end the process: V8, which draws, dies where it cannot reserve its
    addresses. Once there was room it is not asked for again, as V8 keeps what it has."""
    for limit in _resource_limits():
        if "RLIMIT_AS" in limit.of and limit.bytes < _DRAWING:
            raise InputError(
                f"charts and pages: expected {_DRAWING >> 30} GiB of addresses to reserve, found {limit}: give no limit "
                "(`ulimit -v unlimited`), or that of a control group, which counts what is used; a table (.parquet) needs none"
            )


def give_back() -> None:
    """What was freed goes back to the system, where the C library is glibc: some milliseconds.

    glibc keeps what threads freed in a heap for each of them, so that a process that works for hours grows in waves.
    """
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    if library is not None and hasattr(library, "malloc_trim"):
        library.malloc_trim(0)


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """Run the block without Python's collector of circular garbage, which would walk through the 800,000 parts of a large
    vocabulary again and again. What is in no circle is let go at once all the same. Blocks nest, also across threads."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _resource_limits() -> Iterator[Free]:
    if sys.platform == "win32":
        return
    import resource

    used = psutil.Process().memory_info()
    # `data` is Linux's alone, and so is a limit on it that counts more than the heap.
    for name, now in (("RLIMIT_AS", used.vms), ("RLIMIT_DATA", getattr(used, "data", None))):
        soft, _ = resource.getrlimit(getattr(resource, name))
        if soft != resource.RLIM_INFINITY and now is not None:
            yield Free(max(soft - now, 0), f"under {name} (ulimit)")


def cgroup_limits(proc: Path = _PROC, mounted: Path = _CGROUPS) -> Iterator[Free]:
    """What the limit of each control group above this process leaves. A limit of one that lies further up counts too.

    Cached files count as free where nobody read them lately: the kernel drops those first.
    """
    v2 = ("memory.max", "memory.current", "inactive_file")
    v1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    try:
        lines = [line.split(":", 2) for line in proc.read_text().splitlines()]
    except OSError:
        return
    for _, controllers, path in (line for line in lines if len(line) == 3):
        if controllers and "memory" not in controllers.split(","):
            continue
        root, names = (mounted / "memory", v1) if controllers else (mounted, v2)
        # In a container the path may be the host's, of which only the root is mounted here.
        below = Path(path.lstrip("/"))
        for part in (below, *below.parents):
            free_bytes = _free_in_group(root / part, *names)
            if free_bytes is not None:
                yield Free(free_bytes, "in this control group (container or batch job)")


def _free_in_group(group: Path, limit: str, usage: str, cached: str) -> int | None:
    """None where the group has no limit, or is not there."""
    try:
        most, used = (group / limit).read_text().strip(), int((group / usage).read_text())
        statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return None if most == "max" else max(int(most) - used + int(statistics.get(cached, 0)), 0)
    except (OSError, ValueError):
        return None


def keep_freed_memory() -> None:
    """Let glibc keep freed blocks of up to 31 MiB for the next allocation, which it does once a block of that size was freed.

    Else each chunk of a long computation is mapped and zeroed anew, which takes as long as the work on it.
    """
    bytearray(31 << 20)
