"""SIGINT, SIGTERM and SIGHUP at random moments of the real `ostools sweep run`: its exit code is the signal's, there is no
traceback, and the same command ends with the uninterrupted table.

While Python itself starts, nothing of ours stands that could answer: SIGTERM and SIGHUP end it as they end any program, and
SIGINT is Python's own. A shell shows the same exit codes for these.
"""

from __future__ import annotations

import itertools
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from stress._runs import strays, table

CASES = 20
SWEEP = {
    "tasks": ["copy-last", "count-ones"],
    "lengths": "3:6",
    "mitigations": ["none", "separator:every=2"],
    "measurements": ["evaluate", {"name": "collapse", "dtypes": "bfloat16"}],
}
_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(cases: int, seed: int) -> int:
    """One sweep after the other, each ended by signals until it is whole, until there were `cases` signals."""
    chosen, failures, tally = random.Random(seed), 0, Counter[str]()
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        (home / "sweep.yaml").write_text(json.dumps(SWEEP))  # JSON is YAML
        began = time.monotonic()
        if _started(home / "whole").wait() != 0:
            raise RuntimeError("the uninterrupted sweep failed")
        seconds, expected = time.monotonic() - began, table(home / "whole")
        for index in itertools.count():
            if tally.total() >= cases:
                break
            out = home / str(index)
            while True:
                number = chosen.choice(_NUMBERS)
                wrong, sent = _ended(out, number, chosen.uniform(0, seconds))
                failures += bool(wrong)
                if wrong:
                    print(f"signals: {out.name}: {wrong}", flush=True)
                tally[number.name] += sent
                if not sent:
                    break
            if not table(out).equals(expected) or strays(out):
                failures += 1
                print(f"signals: {out.name}: another table or strays: {strays(out)}", flush=True)
            print(f"{tally.total()} signals: {dict(tally)}", file=sys.stderr, flush=True)
    return failures


def _started(out: Path) -> subprocess.Popen[str]:
    file = str(out.parent / "sweep.yaml")
    command = [sys.executable, "-c", "from ostools.cli import main; main()", "sweep", "run", file, "--out", str(out)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def _ended(out: Path, number: signal.Signals, after: float) -> tuple[str, bool]:
    """What is wrong with how a run ended by a signal, and whether it was there to get it."""
    process = _started(out)
    try:
        _, said = process.communicate(timeout=after)
        sent = False
    except subprocess.TimeoutExpired:
        process.send_signal(number)
        _, said = process.communicate()
        sent = True
    if process.returncode == 0 and not said:
        return "", False  # it was over before
    if not sent or process.returncode not in (128 + number, -number):
        return f"{number.name} after {after:.2f} s: exit code {process.returncode}, {said!r}", True
    if "Traceback" in said and process.returncode > 0:  # below 0 it is Python's own, while it starts
        return f"{number.name} after {after:.2f} s: a traceback: {said[-1000:]}", True
    return "", True
