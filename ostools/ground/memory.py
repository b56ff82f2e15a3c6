"""How much memory this process can still have: of the machine's, and of the control groups that it
is in.

In a container or under a batch system the machine's own figure is the host's: who believes it is
killed.
"""

from __future__ import annotations

import ctypes
import gc
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    import torch

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
    """The least that anything leaves: the machine, or a control group that this process is in."""
    machine = Free(psutil.virtual_memory().available, "on this machine")
    return min([machine, *cgroup_limits()], key=lambda limit: limit.bytes)


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


def cgroup_limits(proc: Path = _PROC, mounted: Path = _CGROUPS) -> Iterator[Free]:
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
            yield Free(
                max(most - used + cached, 0), "in this control group (container or batch job)"
            )


def keep_freed_memory() -> None:
    """Let glibc keep freed blocks of up to 31 MiB for the next allocation, which it does once a
    block of that size was freed.

    Else each chunk of a long computation is mapped and zeroed anew, which takes as long as the work
    on it.
    """
    bytearray(31 << 20)
