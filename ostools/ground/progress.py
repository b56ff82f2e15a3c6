"""How a long run is told, as it goes: progress(done, total); the command line draws its bar from it."""

from __future__ import annotations

from collections.abc import Callable
from math import gcd

Progress = Callable[[int, int], None]


def tell(progress: Progress | None, done: int, total: int) -> None:
    """Say it to whoever asked to be told."""
    if progress is not None:
        progress(done, total)


def part_of(progress: Progress | None, start: int, end: int, whole: int, units: int | None = None) -> Progress | None:
    """The progress of one part, which is told as that of the whole: it runs from `start` to `end` of `whole` shares.

    The whole is counted in the part's own steps, so that parts have to have their steps in proportion to their shares; where
    they have not, in so many `units` (100: percent), of which those that are complete are told.
    """
    if progress is None:
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
    if progress is None:
        return None
    most = 0

    def told(done: int, total: int) -> None:
        nonlocal most
        most = max(most, done)
        progress(most, total)

    return told
