"""`ostools sweep results`: the table of a sweep, or how far its run is that another process, or another machine, is making."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ostools.cli import output
from ostools.cli.global_options import GLOBALS
from ostools.cli.output import tell_written
from ostools.cli.own.sweep import CELL
from ostools.ground.errors import InputError

if TYPE_CHECKING:
    from ostools.runs.stored.following import HowFar

EVERY = 0.5
"""Seconds between two looks; more where a look takes long."""
SILENT = 60.0
"""Seconds without a change after which it is said, where the system does not say whether a run is under way."""


def results(directory: Path, *, out: Path | None = None, follow: bool = False) -> None:
    """Show the tidy table of a sweep, finished or not; or how far its run is.

    --follow reads the directory only: cells measured and failed, the rate, the time left; one line
    a change, or one JSON object. Exit code 0 when every cell is measured, 1 when some failed.

    Args:
        directory: what --out was of `ostools sweep run`.
        out: all rows, as .parquet, .csv or .json; else what there is of each cell.
        follow: show how far a run is that goes on elsewhere, until it is over.
    """
    if follow:
        if out is not None:
            raise InputError("--follow shows how a run goes, and --out writes its table: give one of the two")
        if follow_run(directory):
            raise click.exceptions.Exit(1)
        return
    from ostools import runs
    from ostools.results import TABLES, checked_output, save_table, table_as_json

    target = None if out is None else checked_output(out, TABLES, option="--out")
    table: Any = runs.results(directory, say=output.note)
    provenance = table.attrs.get("ostools", {})
    if target is not None:
        tell_written(save_table(table, provenance, target))
        return
    if GLOBALS.json:
        output.print_json(table_as_json(table, provenance))
        return
    several = len(table) > 0 and bool((table.groupby("measurement")["options"].nunique() > 1).any())
    names = [*CELL, "options"] if several else CELL
    cells = table.groupby(names, sort=False) if len(table) else ()
    rows = [(*key, group["length"].nunique(), len(group)) for key, group in cells]
    title = f"{len(rows)} cells, {len(table)} rows"
    output.print_table(title, [*names, "lengths", "rows"], rows, left=len(names))


def follow_run(
    directory: Path, *, sleep: Callable[[float], None] = time.sleep, clock: Callable[[], float] = time.monotonic
) -> bool:
    """Show every change until all cells are measured or failed; whether some failed."""
    from ostools.runs.stored.following import Following

    watch = Following(directory)
    bar_is_shown = sys.stderr.isatty() and not GLOBALS.json
    with output.progress("measured elsewhere") as progress:
        last: HowFar | None = None
        began: tuple[float, int] | None = None
        changed, told_silence = clock(), False
        while True:
            start = clock()
            now = watch.look()
            done = now.measured + now.failed
            began = began or (start, done)
            if now != last:
                _tell(now, last, _rate(began, (clock(), done)), directory, lines=not bar_is_shown)
                changed, told_silence = clock(), False
            if now.cell_count:
                progress(done, now.cell_count)
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


def _rate(began: tuple[float, int], now: tuple[float, int]) -> float | None:
    """How many cells a second were done between two looks, by a clock that no one can set back; None before there is
    something to go by."""
    seconds, fresh = now[0] - began[0], now[1] - began[1]
    return fresh / seconds if fresh > 0 and seconds > 0 else None


def _tell(now: HowFar, last: HowFar | None, rate: float | None, directory: Path, lines: bool) -> None:
    """What is new: the counts, failures, and that nobody is seen to measure."""
    fresh = [said for said in now.failures if last is None or said not in last.failures]
    if GLOBALS.json:
        counts: dict[str, Any] = {**asdict(now), "failures": fresh, "left": now.remaining_count}
        counts |= {"cells_per_second": rate, "seconds_left": now.remaining_count / rate if rate else None}
        sys.stdout.write(json.dumps(counts, allow_nan=False) + "\n")
        sys.stdout.flush()
        return
    for said in fresh:
        output.note(f"failed: {said}")
    if now.running is False and now.remaining_count and (last is None or last.running is not False):
        output.note(
            f"no process seen from here holds {directory}: its run has ended, or goes on elsewhere; the same "
            "`ostools sweep run` command resumes it"
        )
    if lines and (last is None or _words(now, None) != _words(last, None)):
        sys.stdout.write(f"{_words(now, rate)}\n")
        sys.stdout.flush()


def _words(now: HowFar, rate: float | None) -> str:
    if not now.cell_count:
        return "nothing is asked yet: the run is beginning"
    said = f"{now.measured} of {now.cell_count} cells measured"
    said += f", {now.failed} failed" if now.failed else ""
    if rate is None or not now.remaining_count:
        return said
    return f"{said}; {60 * rate:.3g} cells a minute, about {_duration(now.remaining_count / rate)} left"


def _duration(seconds: float) -> str:
    minutes, hours = round(seconds / 60), seconds / 3600
    return f"{seconds:.0f} s" if seconds < 100 else f"{minutes} min" if minutes < 100 else f"{hours:.1f} h"
