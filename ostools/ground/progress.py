"""How a long run is told, as it goes: progress(done, total), from which a bar is drawn or lines are
logged; what is cheaper.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from math import gcd
from typing import Any

_LOG = logging.getLogger("ostools")
Progress = Callable[[int, int], None] | bool
"""Called as progress(done, total). False tells nothing; True, and None where a measurement takes
it, a bar where it is seen.
"""

_DELAY = 2.0  # seconds: what is done sooner needs no bar
LONG = 60.0
"""Seconds. Where no bar is drawn, a work that takes longer says where it is, once in as many."""
FIRST_ESTIMATE = 5.0  # seconds after which what is done says how long the rest takes
_TENTH = 0.1
_SEVERAL = (
    "lengths",
    "seeds",
    "samples",
    "prompts",
    "linearisations",
    "layers",
    "variants",
    "dtypes",
    "windows",
    "orders",
    "mitigations",
)
"""Arguments that hold several things, each of which takes time of its own."""
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
def watched(
    name: str, cheaper: Iterable[str] = (), counts_steps: bool = True
) -> Iterator[Progress]:
    """How a long call tells that it is long: the progress to call inside the block.

    In a terminal or a notebook it draws a bar (if `counts_steps`: something calls the progress).
    Everywhere else it logs lines (`announced`) as warnings, which Python writes to stderr.
    `cheaper`: what would take less time, for the first line.
    """
    if counts_steps and is_looked_at():
        with bar(name) as progress:
            yield progress
        return
    advice = iter([cheaper])

    def say(line: str) -> None:
        ways = ", ".join(next(advice, ()))
        _LOG.warning(
            "ostools.%s: %s%s; progress=False silences this",
            name,
            line,
            ways and f"; cheaper: {ways}",
        )

    with announced(say) as progress:
        yield progress


class Clock:
    """How long a work takes: what is left goes at the rate of the later half of the time, from the
    first step's end on.

    The first step is slow where memory is taken and weights are read for the first time. So it
    counts where it is all there is, and a tenth of the work or more. A step that takes longer than
    the one before it counts as if it ended now.
    """

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._reports: list[tuple[float, float]] = []  # when, and the share that was done

    @property
    def seconds(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._start

    def told(self, steps_done: int, total: int) -> None:
        report = time.monotonic(), steps_done / max(total, 1)
        if self._reports and self._reports[-1][1] == report[1] == 0:  # the work has begun anew
            self._reports[-1] = report
        elif not self._reports or report[1] > self._reports[-1][1]:
            self._reports.append(report)

    def seconds_left(self) -> float | None:
        """Seconds until the end; None where that cannot be told yet, and at the end."""
        now, reports = time.monotonic(), self._reports
        if (
            len(reports) < 2
            or reports[-1][1] >= 1
            or (len(reports) == 2 and reports[1][1] - reports[0][1] < _TENTH)
        ):
            return None
        (_, before), (last, share) = reports[-2:]
        return (
            max(self._end_of(last, share), self._end_of(now, min(1.0, 2 * share - before)), now)
            - now
        )

    def _end_of(self, when: float, share: float) -> float:
        """When the work ends of which that share is done then."""
        first = 1 if len(self._reports) > 2 else 0
        middle = (self._reports[first][0] + when) / 2
        index = bisect_right(self._reports, (middle, 1.0), lo=first + 1, hi=len(self._reports) - 1)
        since, share_before = self._reports[index - 1]
        return when + (when - since) * (1 - share) / (share - share_before)


@contextmanager
def announced(say: Callable[[str], None]) -> Iterator[Progress]:
    """How a long work tells into a log where it is, line by line: the progress to call inside the
    block.

    The first line is said as soon as what is done after 5 seconds lets expect more than a minute in
    all, and after a minute at the latest; from then on one a minute, though no step ends.
    """
    announcement, ended = Announcement(say), threading.Event()
    around, _this_thread.announcement = getattr(_this_thread, "announcement", None), announcement

    def look_every_second() -> None:
        while not ended.wait(1.0):
            announcement.look()

    threading.Thread(target=look_every_second, daemon=True).start()
    try:
        yield announcement
    finally:
        ended.set()
        _this_thread.announcement = around


class Announcement:
    """The lines of one work. `part`: words on the part that is under way; to call it with steps is
    to tell its progress.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.part = ""
        self._say, self._clock, self._lock = say, Clock(), threading.Lock()
        self._steps, self._next = (0, 0), LONG  # seconds after which the next line is due

    def __call__(self, steps_done: int, total: int) -> None:
        self._steps = steps_done, total
        self._clock.told(steps_done, total)
        self.look()

    def look(self) -> None:
        """Say a line where one is due."""
        with self._lock:
            seconds = self._clock.seconds
            left = self._clock.seconds_left() if seconds >= FIRST_ESTIMATE else None
            is_long = self._next == LONG and left is not None and seconds + left > LONG
            if seconds >= self._next or is_long:
                self._next = seconds + LONG
                self._say(self._line(seconds, left))

    def _line(self, seconds: float, left: float | None) -> str:
        steps_done, total = self._steps
        if not total:
            return f"{self.part}{', ' * bool(self.part)}runs for {in_time(seconds)} now"
        steps = "" if total == 100 or self.part else f"{steps_done} of {total}, "
        rest = "" if left is None else f", about {in_time(left)} left"
        return f"{self.part}{', ' * bool(self.part)}{steps}{100 * steps_done // total}% done after {in_time(seconds)}{rest}"


def name_part(words: str) -> None:
    """Say in words which part of this thread's work is under way, for the lines of `announced`."""
    if (announcement := getattr(_this_thread, "announcement", None)) is not None:
        announcement.part = words


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


def cheaper_ways(arguments: Mapping[str, Any]) -> Iterator[str]:
    """Ways to a call that takes less time, in words; `arguments` of a measurement by name, defaults
    too.
    """
    if arguments.get("prompt") is not None:
        yield "a shorter prompt"
    yield from (
        f"fewer {name}" for name in _SEVERAL if name in arguments and _is_several(arguments[name])
    )
    # Of a logit there is one row: it is exact. "auto" is a sketch above d_model 256, where it
    # matters.
    if (
        "cotangents" in arguments
        and arguments.get("method") in ("exact", "estimate")
        and arguments.get("logit") is None
        and arguments.get("accuracy") is None
    ):
        yield "method='sketch'"
    if "max_new_tokens" in arguments:
        yield "a smaller max_new_tokens"


def _is_several(value: Any) -> bool:
    """Whether an argument holds more than one thing; None stands for all that there are, or for a
    default of several.
    """
    if isinstance(value, str):
        return value == "all"
    if isinstance(value, int):
        return value > 1
    if getattr(value, "ndim", 1) == 0:  # numpy's number: it has a length, and no len()
        return False
    return not isinstance(value, Sized) or len(value) > 1
