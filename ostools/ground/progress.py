"""How a long run is told, as it goes: progress(done, total), from which a bar is drawn or lines are
logged.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from math import gcd
from typing import TypeVar

Item = TypeVar("Item")
_LOG = logging.getLogger("ostools")
Progress = Callable[[int, int], None] | bool
"""Called as progress(done, total). False tells nothing; True, and None where a measurement takes
it, a bar where it is seen.
"""

_DELAY = 2.0  # seconds: what is done sooner needs no bar
LONG = 60.0
"""Seconds. Where no bar is drawn, a work that takes longer says where it is, once in as many."""
FIRST_ESTIMATE = 5.0  # seconds after which what is done says how long the rest takes
_this_thread = threading.local()


@contextmanager
def outermost() -> Iterator[bool]:
    """Whether no other such block of this thread is around this one: only the outermost call tells
    how far it is.
    """
    depth = getattr(_this_thread, "depth", 0)
    _this_thread.depth = depth + 1
    try:
        yield depth == 0
    finally:
        _this_thread.depth = depth


@contextmanager
def watched(name: str, counts_steps: bool = True) -> Iterator[Progress]:
    """How a long call tells that it is long: the progress to call inside the block.

    In a terminal or a notebook it draws a bar (if `counts_steps`: something calls the progress).
    Everywhere else it logs lines (`LogLines`) as warnings, which Python writes to stderr.
    """
    if counts_steps and is_looked_at():
        with bar(name) as progress:
            yield progress
        return
    yield LogLines(
        lambda line: _LOG.warning("ostools.%s: %s; progress=False silences this", name, line)
    )


class LogLines:
    """How a long work tells into a log where it is: to call it with steps is to tell its progress.

    The first line is said as soon as what is done after 5 seconds lets expect more than a minute in
    all, and after a minute at the latest; from then on one a minute. What is left is expected to go
    as what is done.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._start, self._next = say, time.monotonic(), LONG

    def __call__(self, steps_done: int, total: int) -> None:
        seconds, share = time.monotonic() - self._start, steps_done / max(total, 1)
        is_long = seconds >= FIRST_ESTIMATE and seconds * total > LONG * steps_done > 0
        if seconds >= self._next or (is_long and self._next == LONG):
            self._next = seconds + LONG
            steps = "" if total == 100 else f"{steps_done} of {total}"
            part = getattr(_this_thread, "part", "") or steps
            progress = f"{share:.0%} done after {in_time(seconds)}"
            remainder = ""
            # Not in the last tenth: a last step that is slower than the others would be "1 s" for
            # minutes.
            if 0 < steps_done <= 0.9 * total:
                remainder = f"about {in_time(seconds * (total - steps_done) / steps_done)} left"
            self._say(", ".join(filter(None, (part, progress, remainder))))


def name_part(words: str) -> None:
    """Say in words which part of this thread's work is under way, for the lines of `LogLines`."""
    _this_thread.part = words


def in_time(seconds: float) -> str:
    """Seconds in words."""
    if seconds < 100:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@contextmanager
def bar(description: str) -> Iterator[Progress]:
    """A bar on stderr, in a terminal or a notebook, for what takes longer than two seconds; gone
    when the block ends.
    """
    if not is_looked_at():
        yield False
        return
    from tqdm import tqdm

    with tqdm(
        desc=description,
        delay=_DELAY,
        leave=False,
        bar_format="{desc}: {percentage:3.0f}%|{bar}| {remaining} left",
    ) as tqdm_bar:

        def update(steps_done: int, total: int) -> None:
            tqdm_bar.total = total
            tqdm_bar.update(steps_done - tqdm_bar.n)

        yield update


def is_looked_at() -> bool:
    """Whether stderr is a terminal's or a notebook's."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return sys.stderr.isatty() or type(shell).__name__ == "ZMQInteractiveShell"


def tell(progress: Progress | None, steps_done: int, total: int) -> None:
    """Say it to whoever asked to be told."""
    if callable(progress):
        progress(steps_done, total)


def part_of(
    progress: Progress | None, start: int, end: int, shares: int, units: int | None = None
) -> Progress | None:
    """The progress of one part, which is told as that of the whole: it runs from `start` to `end`
    of `shares` shares.

    The whole is counted in the part's own steps, so that parts have to have their steps in
    proportion to their shares; where they have not, in so many `units` (100: percent), of which
    those that are complete are told.
    """
    if not callable(progress):
        return None

    def scaled_progress(steps_done: int, total: int) -> None:
        steps = max(total, 1)
        at, of = start * steps + (end - start) * steps_done, shares * steps
        if units is None:
            fine = gcd(end - start, steps)
            progress(at // fine, of // fine)
        else:
            progress(at * units // of, units)

    return scaled_progress


def with_progress(
    items: Collection[Item], progress: Progress | None, units: int | None = 100
) -> Iterator[tuple[Item, Progress | None]]:
    """Go through the items, each with the progress of its own part (`part_of`)."""
    for index, item in enumerate(items):
        yield item, part_of(progress, index, index + 1, len(items), units)
