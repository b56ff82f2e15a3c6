"""A command in a process of its own: the memory that it announced, and what it then took."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

# VmHWM is the peak of the process itself, and not of those before it.
_RUN = """
import shlex, sys
limit = int(sys.argv[1])
if limit:
    import resource
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
from ostools.cli import main
sys.argv = ["ostools", *shlex.split(sys.argv[2])]
try:
    main()
finally:
    peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    print("peak:", 1024 * int(peak.split()[1]), file=sys.stderr)
"""
_SIZES = {"GiB": 2**30, "MiB": 2**20}


@dataclass(frozen=True)
class Ran:
    """Bytes as announced and as measured; the seconds from the announcement to the end, NaN where
    there was none.

    `refused`: the command's last words, if it ended so."""

    forecast_bytes: float
    peak: int
    seconds: float
    refused: str = ""


def ran(line: str, limit: int = 0) -> Ran:
    """`ostools` with these arguments, on the CPU; with at most `limit` bytes of memory, if that is
    not 0.
    """
    arguments = [sys.executable, "-c", _RUN, str(limit), f"{line} --device cpu --json"]
    folder = Path(__file__).parents[1]
    size = began = float("nan")
    peak, said = 0, ""
    with subprocess.Popen(
        arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=folder
    ) as process:
        assert process.stderr is not None
        for told in process.stderr:
            forecast = re.search(r"^forecast: (\S+) ([GM]iB) ", told)
            if forecast is not None:
                size = float(forecast[1]) * _SIZES[forecast[2]]
                began = time.perf_counter()
            elif told.startswith("peak: "):
                peak = int(told.split()[1])
            else:
                said = told.strip()
    if not peak:
        raise RuntimeError(f"{line}: ended without a word: {said}")
    return Ran(size, peak, time.perf_counter() - began, said if process.returncode else "")
