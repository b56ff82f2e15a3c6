"""How a long run is told, as it goes: progress(done, total), from which a bar is drawn."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import gcd

_LOG = logging.getLogger("ostools")
Progress = Callable[[int, int], None] | bool
"""Called as progress(done, total). False tells nothing; True, and None where a measurement takes it, a bar where it is seen."""

_DELAY = 2.0  # seconds: what is done sooner needs no bar
LONG = 60.0
"""Seconds. Where no bar is drawn, a call that takes longer says so."""
FIRST_ESTIMATE = 5.0  # seconds after which what is done says how long the rest takes
_this_thread = threading.local()


@contextmanager
def outermost() -> Iterator[bool]:
    """Whether no other such block of this thread is around this one: only the outermost call tells how far it is."""
    depth = getattr(_this_thread, "depth", 0)
    _this_thread.depth = depth + 1
    try:
        yield depth == 0
    finally:
        _this_thread.depth = depth


@contextmanager
def watched(name: str, cheaper: str = "", counts_steps: bool = True) -> Iterator[Progress]:
    """How a long call tells that it is long: the progress to call inside the block.

    In a terminal or a notebook it draws a bar (if `counts_steps`: something calls the progress). Everywhere else it logs one
    line as a warning, which Python writes to stderr: as soon as what is done after 5 seconds lets expect more than a minute in
    all, and after a minute at the latest. `cheaper`: what would take less time.
    """
    if counts_steps and is_looked_at():
        with bar(name) as progress:
            yield progress
        return
    announcement = _Announcement(name, cheaper)
    timer = threading.Timer(LONG, announcement.say, [f"runs for {LONG:.0f} s now"])
    timer.daemon = True
    timer.start()
    try:
        yield announcement.progress
    finally:
        timer.cancel()


class Clock:
    """How long a work takes in all, by the steps that are done. What comes before the first step is no part of their rate."""

    def __init__(self) -> None:
        self._start = self._first_step = time.monotonic()

    def look(self, steps_done: int, total: int, early: float = FIRST_ESTIMATE) -> tuple[float, float] | None:
        """Seconds since the beginning and seconds expected in all; None before `early` seconds, and at the end."""
        now = time.monotonic()
        if steps_done <= 0:
            self._first_step = now
        elapsed = now - self._start
        if not 0 < steps_done < total or elapsed < early:
            return None
        return elapsed, elapsed + (now - self._first_step) * (total - steps_done) / steps_done


class _Announcement:
    def __init__(self, name: str, cheaper: str) -> None:
        self._name, self._cheaper = name, cheaper
        self._clock, self._is_said = Clock(), False

    def progress(self, steps_done: int, total: int) -> None:
        estimate = self._clock.look(steps_done, total)
        if estimate is not None and estimate[1] > LONG:
            self.say(f"{100 * steps_done // total}% after {estimate[0]:.0f} s, so about {estimate[1]:.0f} s in all")

    def say(self, what: str) -> None:
        if not self._is_said:
            self._is_said = True
            cheaper = f"; cheaper: {self._cheaper}" if self._cheaper else ""
            _LOG.warning("ostools.%s: %s%s; progress=False silences this", self._name, what, cheaper)


@contextmanager
def bar(description: str) -> Iterator[Progress]:
    """A bar on stderr, in a terminal or a notebook, for what takes longer than two seconds; gone when the block ends."""
    if not is_looked_at():
        yield False
        return
    from tqdm import tqdm

    with tqdm(
        desc=description, delay=_DELAY, leave=False, bar_format="{desc}: {percentage:3.0f}%|{bar}| {remaining} left"
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


def part_of(progress: Progress | None, start: int, end: int, shares: int, units: int | None = None) -> Progress | None:
    """The progress of one part, which is told as that of the whole: it runs from `start` to `end` of `shares` shares.

    The whole is counted in the part's own steps, so that parts have to have their steps in proportion to their shares; where
    they have not, in so many `units` (100: percent), of which those that are complete are told.
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


def rising(progress: Progress | None) -> Progress | None:
    """The same, told never to fall back: what is done over again was told when it was done first."""
    if not callable(progress):
        return None
    most = 0

    def rising_progress(steps_done: int, total: int) -> None:
        nonlocal most
        most = max(most, steps_done)
        progress(most, total)

    return rising_progress
