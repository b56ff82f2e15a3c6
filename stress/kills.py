"""kill -9 at random moments of a sweep, then the same command again: the table is the uninterrupted
one to the bit.

Half of the kills come at a random time, the others at a random change on disk, of which a run makes
about nine a cell within milliseconds. One in twenty is of the real command, whose first seconds are
imports.
"""

from __future__ import annotations

import importlib
import itertools
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any
from unittest import mock

from ostools import sweep
from ostools.sweep import executor as local
from ostools.sweep import sweep_of
from ostools.sweep.store import Store
from stress._runs import at_change, die, ready, strays, table

CASES = 100
SWEEP = {
    "tasks": ["copy-last", "count-ones"],
    "lengths": "3:4",
    "mitigations": ["none", "separator:every=2"],
    "measurements": ["evaluate", {"name": "collapse", "dtypes": "bfloat16"}, "bounds"],
}
_PHASES = ("start", "hash", "load", "measure", "store")
_STEPS: tuple[tuple[Any, str], ...] = (
    (
        importlib.import_module("ostools.sweep.run"),
        "checkpoint_hash",
    ),  # its name is the function's, too
    (importlib.import_module("ostools.models"), "load_model"),
    (local, "measure"),
    (Store, "add"),
)
_NEVER = 1 << 30


def run(cases: int, seed: int) -> int:
    """Sweeps that are killed and resumed until they are whole, until there were `cases` kills."""
    chosen, context, tally, failures = random.Random(seed), ready(), Counter[str](), 0
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        warm = context.Process(target=int)  # the first one waits for the imports
        warm.start()
        warm.join()
        began, whole = time.monotonic(), _Forked(context, home / "whole", _NEVER)
        if whole.ended(within=None) != 0:
            raise RuntimeError("the uninterrupted sweep failed")
        seconds, changes, expected = (
            time.monotonic() - began,
            whole.changes.value,
            table(home / "whole"),
        )
        for index in itertools.count():
            if tally.total() >= cases:
                break
            out = home / str(index)
            _killed_until_whole(out, context, chosen, tally, seconds, changes)
            wrong = _wrong(out, expected)
            if wrong:
                failures += 1
                print(f"kills: {out.name}: {wrong}", flush=True)
            print(f"{tally.total()} kills: {dict(tally)}", file=sys.stderr, flush=True)
    return failures


def _killed_until_whole(
    out: Path,
    context: ForkServerContext,
    chosen: random.Random,
    tally: Counter[str],
    seconds: float,
    changes: int,
) -> None:
    code = None
    while code != 0:
        if tally.total() % 20 == 19:
            code = _command(out, chosen.uniform(0, 3 * seconds + 10))
            tally["command"] += code != 0
            continue
        by_time = chosen.random() < 0.5
        child = _Forked(context, out, _NEVER if by_time else chosen.randrange(changes))
        code = child.ended(within=chosen.uniform(0, seconds) if by_time else None)
        if code not in (0, -9):
            raise RuntimeError(f"a run in {out} ended with {code}")
        tally[_PHASES[child.phase.value]] += code != 0


def _wrong(out: Path, expected: Any) -> str:
    """What is not as the uninterrupted sweep left it; empty where nothing is."""
    found = table(out)
    if not found.equals(expected) or list(found.columns) != list(expected.columns):
        return f"another table, of {len(found)} rows; expected {len(expected)}"
    cells = sorted(path.name.split(".")[0] for path in (out / "cells").iterdir())
    if len(set(cells)) != len(cells):
        return "a cell is stored twice"
    return ", ".join(strays(out))


class _Forked:
    """A run of the sweep in a process that has imported everything, which dies at the change of
    this number.
    """

    def __init__(self, context: ForkServerContext, out: Path, place: int) -> None:
        self.phase, self.changes = context.Value("i", 0), context.Value("i", 0)
        self.process = context.Process(target=_child, args=(out, place, self.phase, self.changes))
        self.process.start()

    def ended(self, within: float | None) -> int | None:
        """The exit code, after kill -9 where it has not ended `within` seconds."""
        self.process.join(within)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
        return self.process.exitcode


def _child(out: Path, place: int, phase: Any, changes: Any) -> None:
    def entered(index: int, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **options: Any) -> Any:
            phase.value = index
            return real(*given, **options)

        return call

    with ExitStack() as stack:
        for index, (owner, name) in enumerate(_STEPS, start=1):
            stack.enter_context(
                mock.patch.object(owner, name, entered(index, getattr(owner, name)))
            )
        met = stack.enter_context(at_change(place, die))
        done = sweep.run(sweep_of(SWEEP), out)
        changes.value = len(met)
    if done.failed:
        raise RuntimeError(done.failed[0])


def _command(out: Path, within: float) -> int:
    """The exit code of the real command, after kill -9 where it has not ended `within` seconds.
    RuntimeError for any other.
    """
    file = out.with_suffix(".yaml")
    file.write_text(json.dumps(SWEEP))  # JSON is YAML
    command = [
        sys.executable,
        "-c",
        "from ostools.cli import main; main()",
        "sweep",
        "run",
        str(file),
        "--out",
        str(out),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        _, told = process.communicate(timeout=within)
    except subprocess.TimeoutExpired:
        process.kill()
        _, told = process.communicate()
    if process.returncode not in (0, -9):
        raise RuntimeError(
            f"the command in {out} ended with {process.returncode}: {told.decode(errors='replace')}"
        )
    return process.returncode
