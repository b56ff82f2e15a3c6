"""kill -9 at random changes on disk of a sweep, then the same run again: the table is the
uninterrupted one to the bit.

A run makes about nine changes a cell within milliseconds; between two of them nothing on disk
changes, so that a kill at another moment leaves what one of these leaves.
"""

from __future__ import annotations

import random
import sys
import tempfile
from multiprocessing.context import ForkServerContext
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

from ostools import sweep
from stress._runs import at_change, die, ready, strays, table

CASES = 50
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
        _exit_code(context, home / "whole", _NEVER, changes)
        expected, whole = table(home / "whole"), changes.value
        while kills < cases:
            out = home / str(kills)
            while _exit_code(context, out, chosen.randrange(whole), changes) != 0:
                kills += 1
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
    context: ForkServerContext, out: Path, place: int, changes: Synchronized[int]
) -> int | None:
    """The exit code of a run in a process of its own, which dies at the change on disk of this
    number."""
    process = context.Process(target=_sweep, args=(out, place, changes))
    process.start()
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
