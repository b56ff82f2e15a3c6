"""How a long run is told, as it goes: progress(done, total), from which a bar is drawn."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import gcd

Progress = Callable[[int, int], None] | bool
"""Called as progress(done, total). False tells nothing; True, and None where a measurement takes it, a bar where it is seen."""

_DELAY = 2.0  # seconds: what is done sooner needs no bar
_tellers = 0


@contextmanager
def told_here() -> Iterator[bool]:
    """Within the block nobody else draws a bar; gives whether nobody around it does."""
    global _tellers
    first = _tellers == 0
    _tellers += 1
    try:
        yield first
    finally:
        _tellers -= 1


@contextmanager
def bar(description: str) -> Iterator[Progress]:
    """A bar on stderr, in a terminal or a notebook, for what takes longer than two seconds; gone when the block ends."""
    if not _is_looked_at():
        yield False
        return
    from tqdm import tqdm

    with tqdm(
        desc=description, delay=_DELAY, leave=False, bar_format="{desc}: {percentage:3.0f}%|{bar}| {remaining} left"
    ) as drawn:

        def told(done: int, total: int) -> None:
            drawn.total = total
            drawn.update(done - drawn.n)

        yield told


def _is_looked_at() -> bool:
    """Whether stderr is a terminal's or a notebook's."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return sys.stderr.isatty() or type(shell).__name__ == "ZMQInteractiveShell"


def tell(progress: Progress | None, done: int, total: int) -> None:
    """Say it to whoever asked to be told."""
    if callable(progress):
        progress(done, total)


def part_of(progress: Progress | None, start: int, end: int, whole: int, units: int | None = None) -> Progress | None:
    """The progress of one part, which is told as that of the whole: it runs from `start` to `end` of `whole` shares.

    The whole is counted in the part's own steps, so that parts have to have their steps in proportion to their shares; where
    they have not, in so many `units` (100: percent), of which those that are complete are told.
    """
    if not callable(progress):
        return None

    def told(done: int, total: int) -> None:
        steps = max(total, 1)
        at, of = start * steps + (end - start) * done, whole * steps
        if units is None:
            fine = gcd(end - start, steps)
            progress(at // fine, of // fine)
        else:
            progress(at * units // of, units)

    return told


def rising(progress: Progress | None) -> Progress | None:
    """The same, told never to fall back: what is done over again was told when it was done first."""
    if not callable(progress):
        return None
    most = 0

    def told(done: int, total: int) -> None:
        nonlocal most
        most = max(most, done)
        progress(most, total)

    return told
