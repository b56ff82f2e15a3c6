"""What runs on this machine at the size that people use: the table of docs/scale.md, measured beside its forecasts.

    python -m benchmarks.scale [DIR] [--shape gemma-7b]

Writes checkpoints of random weights into DIR (23 GB for all three; a temporary directory if none is named), then runs every
command in a process of its own that may hold 24 GiB of memory, with the forecast that the command itself announces. What is
measured already is kept in DIR/scale.json; a row that was cut off is measured again. The table goes to docs/scale.md.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks.shapes import write_shape
from ostools.models.shape import Shape
from ostools.models.sources import locate

LIMIT = 24 << 30
SCALE = ("gemma-3-270m", "gemma-2b", "gemma-7b")
PROMPT = "The capital of France is"
COMMANDS = {
    "collapse, figure-5a, 1:64, bfloat16": (
        "collapse --task figure-5a --lengths 1:64 --dtype bfloat16 --load-dtype bfloat16"
    ),
    "sensitivity, estimate": f"sensitivity --method estimate --dtype bfloat16 --prompt '{PROMPT}'",
    "path-sum, second-moment": f"path-sum --variant second-moment --dtype bfloat16 --prompt '{PROMPT}'",
    "behaviour, a greedy answer": "behaviour --task copy-last --lengths 4 --max-new-tokens 8 --dtype bfloat16",
}
PAGE = Path(__file__).parents[1] / "docs" / "scale.md"
_START, _END = "<!-- measured: start -->", "<!-- measured: end -->"

# The peak of the process itself, and not of those before it: VmHWM of a fresh one.
_RUN = """
import resource, shlex, sys, time
resource.setrlimit(resource.RLIMIT_DATA, (int(sys.argv[1]), int(sys.argv[1])))
line = shlex.split(sys.argv[2])
from ostools.cli import main
sys.argv = ["ostools", *line]
start = time.perf_counter()
try:
    main()
finally:
    peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    print(f"measured: {1024 * int(peak.split()[1])} {time.perf_counter() - start}", file=sys.stderr)
"""


@dataclass(frozen=True)
class Row:
    """One command on one shape: bytes and seconds, as announced and as measured; `refused`: its last words, if it ended so."""

    shape: str
    command: str
    weights: int
    forecast_bytes: float
    forecast_seconds: float
    peak: int
    seconds: float
    refused: str = ""


def measured(name: str, command: str, directory: Path) -> Row:
    """In a process of its own."""
    line = f"{COMMANDS[command]} --model {directory} --device cpu --json --max-time 24h"
    done = subprocess.run(
        [sys.executable, "-c", _RUN, str(LIMIT), line], capture_output=True, text=True, cwd=PAGE.parents[1]
    )
    found = re.search(r"^measured: (\d+) (\S+)$", done.stderr, re.M)
    told = re.search(r"^forecast: (\S+) ([GM]iB) .*; about (\S+) (s|min|h)$", done.stderr, re.M)
    if found is None:
        raise RuntimeError(f"{name}, {command}: ended without a word: {done.stderr[-500:]}")
    size = float(told[1]) * {"GiB": 2**30, "MiB": 2**20}[told[2]] if told else float("nan")
    seconds = float(told[3]) * {"s": 1, "min": 60, "h": 3600}[told[4]] if told else float("nan")
    weights = sum(shard.stat().st_size for shard in directory.glob("*.safetensors"))
    words = "" if done.returncode == 0 else done.stderr.strip().splitlines()[-2]
    return Row(name, command, weights, size, seconds, int(found[1]), float(found[2]), words)


def table(rows: list[Row]) -> str:
    """As Markdown."""
    lines = [
        "| shape | command | weights, GB | peak, GB | forecast | time, s | forecast |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        peak, seconds = f"{row.peak / 1e9:.2f}", f"{row.seconds:.0f}"
        ratio = f"{row.forecast_bytes / row.peak:.2f} of it", f"{row.forecast_seconds / row.seconds:.2f} of it"
        cells = [row.shape, row.command, f"{row.weights / 1e9:.2f}", peak, ratio[0], seconds, ratio[1]]
        if row.refused:
            cells[3:] = [f"refused: {row.refused}", "", "", ""]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def write_page(rows: list[Row]) -> None:
    """The table between its marks; the rest of the page stays as it is."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(_START)
    after = rest.partition(_END)[2]
    where = f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    PAGE.write_text(f"{before}{_START}\n{table(rows)}\n\n{where}\n{_END}{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what runs at the size that people use.")
    parser.add_argument("directory", nargs="?", type=Path, default=Path(tempfile.gettempdir()) / "ostools-scale")
    parser.add_argument("--shape", choices=SCALE, action="append")
    asked = parser.parse_args()
    kept = asked.directory / "scale.json"
    rows = [Row(**row) for row in json.loads(kept.read_text())] if kept.exists() else []
    for name in asked.shape or SCALE:
        directory = write_shape(name, asked.directory / name)
        print(name, Shape.of_source(locate(str(directory), None), torch.bfloat16, "cpu"), flush=True)
        for command in COMMANDS:
            if any((row.shape, row.command) == (name, command) for row in rows):
                continue
            rows.append(measured(name, command, directory))
            kept.write_text(json.dumps([asdict(row) for row in rows], indent=1))
            print(table(rows[-1:]).splitlines()[-1], flush=True)
    write_page(sorted(rows, key=lambda row: (SCALE.index(row.shape), list(COMMANDS).index(row.command))))


if __name__ == "__main__":
    main()
