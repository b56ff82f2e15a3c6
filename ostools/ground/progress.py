"""How a long run is told, as it goes: progress(done, total), from which a bar is drawn or lines are
logged.
"""

import logging
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
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
_PARTS = 1000  # of a whole, in which its parts are told
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
def watched(name: str, say: Callable[[str], None] | None = None) -> Iterator[Progress]:
    """How a long call tells that it is long: the progress to call inside the block.

    In a terminal or a notebook it draws a bar on stderr for what takes longer than two seconds,
    which is gone when the block ends. Everywhere else lines (`LogLines`) go to `say`; where that is
    left out they are logged as warnings, which Python writes to stderr.
    """
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if not sys.stderr.isatty() and type(shell).__name__ != "ZMQInteractiveShell":
        warning = "ostools.%s: %s; progress=False silences this"
        yield LogLines(say or partial(_LOG.warning, warning, name))
        return
    from tqdm import tqdm

    form = "{desc}: {percentage:3.0f}%|{bar}| {remaining} left"
    with tqdm(desc=name, delay=_DELAY, leave=False, bar_format=form) as bar:

        def update(steps_done: int, total: int) -> None:
            bar.total = total
            bar.update(steps_done - bar.n)

        yield update


class LogLines:
    """How a long work tells into a log where it is: to call it with steps is to tell its progress.

    It says a line after 5 seconds, and then once a minute, as long as what is done lets expect more
    than a minute in all. What is left is expected to go as what is done.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._start, self._next = say, time.monotonic(), FIRST_ESTIMATE

    def __call__(self, steps_done: int, total: int) -> None:
        seconds = time.monotonic() - self._start
        if seconds < self._next or not 0 < steps_done < total:
            return
        seconds_left = seconds * (total - steps_done) / steps_done
        if seconds + seconds_left > LONG:
            self._next = seconds + LONG
            part = getattr(_this_thread, "part", "")
            share = f"{steps_done / total:.0%} done after {in_time(seconds)}"
            self._say(f"{part}{share}, about {in_time(seconds_left)} left")


def name_part(words: str) -> None:
    """Say in words which part of this thread's work is under way, for the lines of `LogLines`."""
    _this_thread.part = f"{words}, " if words else ""


def in_time(seconds: float) -> str:
    """Hours, minutes and seconds, such as 0:05:10."""
    return str(timedelta(seconds=round(seconds)))


def tell(progress: Progress | None, steps_done: int, total: int) -> None:
    """Say it to whoever asked to be told."""
    if callable(progress):
        progress(steps_done, total)


def part_of(progress: Progress | None, start: int, end: int, shares: int) -> Progress | None:
    """The progress of one part, which is told as that of the whole, in thousandths: it runs from
    `start` to `end` of `shares` shares.
    """
    if not callable(progress):
        return None

    def scaled_progress(steps_done: int, total: int) -> None:
        steps = max(total, 1)
        progress((start * steps + (end - start) * steps_done) * _PARTS // (shares * steps), _PARTS)

    return scaled_progress


def with_progress(
    items: Collection[Item], progress: Progress | None
) -> Iterator[tuple[Item, Progress | None]]:
    """Go through the items, each with the progress of its own part (`part_of`)."""
    for index, item in enumerate(items):
        yield item, part_of(progress, index, index + 1, len(items))
