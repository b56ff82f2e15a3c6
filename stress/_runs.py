"""What the tests of cut-off runs share: a run in a process that forks ready to start, and a stop at
any change on disk.
"""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

from ostools.sweep import results

_CHANGES: tuple[tuple[Any, str], ...] = (
    (os, "mkdir"),
    (os, "fsync"),
    (os, "chmod"),
    (os, "replace"),
    (os, "unlink"),
    (fcntl, "flock"),
)


@contextmanager
def at_change(place: int, act: Callable[[], object]) -> Iterator[list[str]]:
    """Calls `act` just before the change on disk of that number, counted from 0: the directory is
    then as a run leaves it that ends there. A file's writing counts twice, before it and in its
    middle. Gives the names of the changes so far."""
    met: list[str] = []
    real_open = os.open

    def meet(name: str) -> None:
        met.append(name)
        if len(met) == place + 1:
            act()

    def watched(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **options: Any) -> Any:
            meet(name)
            return real(*given, **options)

        return call

    def opened(path: Any, flags: int, *given: Any, **options: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):  # reading changes nothing
            meet("open")
        return real_open(path, flags, *given, **options)

    def halved(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Path, content: Any, **options: Any) -> Any:
            meet(name)
            real(path, content[: len(content) // 2], **options)
            meet(f"half of {name}")
            return real(path, content, **options)

        return call

    with ExitStack() as stack:
        for owner, name in _CHANGES:
            stack.enter_context(mock.patch.object(owner, name, watched(name, getattr(owner, name))))
        stack.enter_context(mock.patch.object(os, "open", opened))
        for name in ("write_bytes", "write_text"):
            stack.enter_context(mock.patch.object(Path, name, halved(name, getattr(Path, name))))
        yield met


def die() -> NoReturn:
    """As kill -9 does it: no `finally` runs, no buffer is flushed."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("survived kill -9")


def ready() -> ForkServerContext:
    """Processes that begin with everything imported."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["ostools.sweep", "ostools.cli.verbs.composed", "ostools.models.load"]
    )
    return context


def table(directory: Path) -> Any:
    """What must be the same however a sweep went: all but the seconds that it took."""
    return results(directory).drop(columns="seconds", errors="ignore")


def strays(directory: Path) -> list[str]:
    """What a finished sweep should not leave: half-written files, records of failures, anything
    unknown.
    """
    known = {".lock", "sweep.json", "cells", "failed"}
    odd = [path for path in directory.iterdir() if path.name not in known]
    odd += [
        path
        for path in (directory / "cells").iterdir()
        if path.suffix != ".parquet" or path.name[0] == "."
    ]
    odd += (directory / "failed").iterdir()
    return sorted(str(path.relative_to(directory)) for path in odd)
