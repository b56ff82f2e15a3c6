"""`ostools results --follow`: how far a run is that another process, or another machine, is making."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ostools.commands import output
from ostools.commands.manners import MANNERS
from ostools.runs.stored.following import Following, Progress

EVERY = 0.5
"""Seconds between two looks; more where a look takes long."""
SILENT = 60.0
"""Seconds without a change after which it is said, where the system does not say whether a run is under way."""


@dataclass
class _Pace:
    """How many cells a second are done since the first look; by a clock that no one can set back."""

    began: float
    done: int

    def rate(self, now: float, done: int) -> float | None:
        """None before there is something to go by."""
        fresh = done - self.done
        return fresh / (now - self.began) if fresh > 0 and now > self.began else None


def follow(
    directory: Path, *, sleep: Callable[[float], None] = time.sleep, clock: Callable[[], float] = time.monotonic
) -> bool:
    """Show every change until all cells are measured or failed; whether some failed."""
    watch = Following(directory)
    bar_is_shown = sys.stderr.isatty() and not MANNERS.json
    with output.progress("measured elsewhere") as progress:
        last: Progress | None = None
        pace = None
        changed, told_silence = clock(), False
        while True:
            start = clock()
            now = watch.look()
            pace = pace or _Pace(start, now.measured + now.failed)
            if now != last:
                _tell(now, last, pace.rate(clock(), now.measured + now.failed), directory, lines=not bar_is_shown)
                changed, told_silence = clock(), False
            if now.asked:
                progress(now.measured + now.failed, now.asked)
            if now.over:
                break
            if now.running is None and not told_silence and clock() - changed > SILENT:
                output.note(
                    f"nothing has changed for {SILENT:.0f} s, and this system does not say whether a run is under way"
                )
                told_silence = True
            last = now
            sleep(max(EVERY, 10 * (clock() - start)))
    if bar_is_shown:
        output.print_text([_words(now, None)])
    return now.failed > 0


def _tell(now: Progress, last: Progress | None, rate: float | None, directory: Path, lines: bool) -> None:
    """What is new: the counts, failures, and that nobody is seen to measure."""
    fresh = [said for said in now.failures if last is None or said not in last.failures]
    if MANNERS.json:
        counts: dict[str, Any] = {**asdict(now), "failures": fresh, "left": now.left}
        counts |= {"cells_per_second": rate, "seconds_left": now.left / rate if rate else None}
        sys.stdout.write(json.dumps(counts, allow_nan=False) + "\n")
        sys.stdout.flush()
        return
    for said in fresh:
        output.note(f"failed: {said}")
    if now.running is False and now.left and (last is None or last.running is not False):
        output.note(
            f"no process seen from here holds {directory}: its run has ended, or goes on elsewhere; the same `ostools run` "
            "command resumes it"
        )
    if lines and (last is None or _words(now, None) != _words(last, None)):
        sys.stdout.write(f"{_words(now, rate)}\n")
        sys.stdout.flush()


def _words(now: Progress, rate: float | None) -> str:
    if not now.asked:
        return "nothing is asked yet: the run is beginning"
    said = f"{now.measured} of {now.asked} cells measured"
    said += f", {now.failed} failed" if now.failed else ""
    if rate is None or not now.left:
        return said
    return f"{said}; {60 * rate:.3g} cells a minute, about {_duration(now.left / rate)} left"


def _duration(seconds: float) -> str:
    minutes, hours = round(seconds / 60), seconds / 3600
    return f"{seconds:.0f} s" if seconds < 100 else f"{minutes} min" if minutes < 100 else f"{hours:.1f} h"
