"""kill -9 at random moments of a sweep, then the same run again: the table is the uninterrupted one
to the bit.

Half of the kills come at a random time, the others at a random change on disk, of which a run makes
about nine a cell within milliseconds.
"""

from __future__ import annotations

import itertools
import random
import sys
import tempfile
import time
from multiprocessing.context import ForkServerContext
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

from ostools import sweep
from stress._runs import at_change, die, ready, strays, table

CASES = 100
SWEEP = {
    "tasks": ["copy-last", "count-ones"],
    "lengths": "3:4",
    "mitigations": ["none", "separator:every=2"],
    "measurements": ["evaluate", {"name": "collapse", "dtypes": "bfloat16"}, "bounds"],
}
_NEVER = 1 << 30


def run(cases: int, seed: int) -> int:
    """Sweeps that are killed and resumed until they are whole, until there were `cases` kills."""
    chosen, context, kills, failures = random.Random(seed), ready(), 0, 0
    changes: Any = context.Value("i", 0)
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        _exit_code(context, home / "warm", _NEVER, changes)  # the first one waits for the imports
        began = time.monotonic()
        _exit_code(context, home / "whole", _NEVER, changes)
        seconds, expected = time.monotonic() - began, table(home / "whole")
        for index in itertools.count():
            if kills >= cases:
                return failures
            out, code = home / str(index), None
            while code != 0:
                by_time = chosen.random() < 0.5
                place = _NEVER if by_time else chosen.randrange(changes.value)
                within = chosen.uniform(0, seconds) if by_time else None
                code = _exit_code(context, out, place, changes, within)
                kills += code != 0
            if wrong := _wrong(out, expected):
                failures += 1
                print(f"kills: {out.name}: {wrong}", flush=True)
            print(f"{kills} kills", file=sys.stderr, flush=True)
    return failures


def _wrong(out: Path, expected: Any) -> str:
    """What is not as the uninterrupted sweep left it; empty where nothing is."""
    rows = table(out)
    if not rows.equals(expected):
        return f"another table, of {len(rows)} rows; expected {len(expected)}"
    cells = [path.name.split(".")[0] for path in (out / "cells").iterdir()]
    return "a cell is stored twice" if len(set(cells)) != len(cells) else ", ".join(strays(out))


def _exit_code(
    context: ForkServerContext,
    out: Path,
    place: int,
    changes: Synchronized[int],
    within: float | None = None,
) -> int | None:
    """The exit code of a run in a process of its own, which dies at the change on disk of this
    number, or by kill -9 where it has not ended `within` seconds."""
    process = context.Process(target=_sweep, args=(out, place, changes))
    process.start()
    process.join(within)
    if process.exitcode is None:
        process.kill()
        process.join()
    if process.exitcode not in (0, -9):
        raise RuntimeError(f"a run in {out} ended with {process.exitcode}")
    return process.exitcode


def _sweep(out: Path, place: int, changes: Synchronized[int]) -> None:
    with at_change(place, die) as met:
        done = sweep.run(sweep.sweep_of(SWEEP), out)
        changes.value = len(met)
    if done.failed:
        raise RuntimeError(done.failed[0])
