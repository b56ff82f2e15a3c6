"""What cells of a sweep were forecast to take, beside what they then took: each in a fresh process.

    python -m benchmarks.forecast

Time is of one thread, on an idle machine. A ratio above 1 is a forecast that was too high.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ostools.models.sources import locate
from ostools.runs import sweep_of
from ostools.runs.asked.cells import cells_of
from ostools.runs.forecast.forecast import forecast
from tests.checkpoints import STORIES, write_checkpoint

KINDS = ("behaviour", "collapse", "sensitivity", "path-sum")
LARGE: dict[str, Any] = {"d_model": 512, "n_layers": 8, "n_heads": 8, "d_head": 64, "d_mlp": 2048, "context": 2048}
"""34 M parameters."""

_MEASURE = """
import json, sys, time, torch
torch.set_num_threads(1)
from ostools.models.sources import locate
from ostools.runs import sweep_of
from ostools.runs.asked.cells import cells_of, checkpoint_hash, code_version
from ostools.runs.workers.executor import Terms
from ostools.runs.workers.local import Bench
(cell,) = cells_of(sweep_of(json.loads(sys.argv[1])))
bench = Bench(Terms("cpu", {cell.model: checkpoint_hash(locate(cell.model, None))}, code_version()))
start = time.perf_counter()
found = bench.measure(cell)
seconds = time.perf_counter() - start
if isinstance(found, str):
    sys.exit(found)
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps([seconds, 1024 * int(peak.split()[1])]))
"""


def main() -> None:
    print("\nforecasts of a sweep's cells (memory: peak of a fresh process; seconds: loading and measuring)")
    print(f"{'':34}{'MiB':>8}{'forecast':>10}{'ratio':>7}{'s':>10}{'forecast':>10}{'ratio':>7}")
    with tempfile.TemporaryDirectory() as folder:
        for name, asked in _asked(folder):
            (cell,) = cells_of(sweep_of(asked))
            done = subprocess.run([sys.executable, "-c", _MEASURE, json.dumps(asked)], capture_output=True, text=True)
            if done.returncode:
                print(f"{name:34}{done.stderr.strip().splitlines()[-1][:100]}")
                continue
            seconds, peak = json.loads(done.stdout)
            found = forecast(cell, locate(cell.model, None), "cpu")
            if found.seconds is None:
                raise RuntimeError(f"{name}: measured, and not forecast")
            memory = f"{peak / 2**20:8.0f}{found.memory / 2**20:10.0f}{found.memory / peak:7.2f}"
            print(f"{name:34}{memory}{seconds:10.2f}{found.seconds:10.2f}{found.seconds / seconds:7.2f}")


def _asked(folder: str) -> Iterator[tuple[str, dict[str, Any]]]:
    models = {"embedded": "embedded", "large": str(write_checkpoint(Path(folder) / "large", "gemma", **LARGE))}
    if STORIES.is_dir():
        models["stories260K"] = str(STORIES)
    for name, model in models.items():
        for kind in KINDS:
            for lengths in (60, [60, 200]):
                measured: dict[str, Any] = {"name": kind}
                if kind == "sensitivity" and name == "large":
                    if lengths != 60:
                        continue
                    measured["linearisations"] = "frozen"
                asked = {"models": model, "tasks": "count-ones", "lengths": lengths, "measurements": measured}
                yield f"{name} {kind} {lengths}", {**asked, "device": "cpu"}


if __name__ == "__main__":
    main()
