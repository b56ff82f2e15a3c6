"""Commands under `ulimit -v` of any size: a file, or a refusal in one line and no file; no signal ends the process."""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

from tests.hostile.test_limits import COMMAND, limited

CASES = 30
_LEAST, _MOST = 8, 100
"""GiB: with less even torch is not always imported, and with more V8 has its room."""
_ENDINGS = ("png", "svg", "pdf", "html", "parquet", "json")


def run(cases: int, seed: int) -> int:
    """How many commands ended otherwise."""
    if sys.platform != "linux":
        print("limits: only Linux holds a process to this limit", flush=True)
        return 0
    chosen, failures = random.Random(seed), 0
    for case in range(cases):
        gib, ending = chosen.randint(_LEAST, _MOST), chosen.choice(_ENDINGS)
        with tempfile.TemporaryDirectory() as folder:
            words = ("bounds", "--prompt", "ab", "--variant", "local", "--out", f"x.{ending}")
            done = limited(COMMAND, gib, *words, below=Path(folder))
            files = list(Path(folder).iterdir())
        refused = done.returncode == 2 and not files and len(done.stderr.splitlines()) == 1
        if not refused and (done.returncode != 0 or len(files) != 1):
            print(f"limits, case {case}: {gib} GiB, {ending}: exit code {done.returncode}: {done.stderr[-500:]}")
            failures += 1
    return failures
