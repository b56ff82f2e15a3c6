"""A sweep on Ray's workers against one process: what a second worker gains, and what a cell costs beside its measurement.

    python -m benchmarks.sweep [MODEL ...]

Of models that are named, one round of 40 cells: whole runs too, with the workers' start.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pandas as pd

from ostools.runs import Executor, RayCluster, run, sweep_of

MODELS = sys.argv[1:]
CELLS = 40 if MODELS else 16
ROUNDS = 1 if MODELS else 3
SWEEP = {
    "models": MODELS or "embedded",
    "tasks": "count-ones-bernoulli",
    "lengths": "4:5" if MODELS else "4:40",
    "seeds": list(range(CELLS // max(1, len(MODELS)))),
    "measurements": {"name": "evaluate", "max_new_tokens": 16},
    "device": "cpu",
}


def timed(executor: Executor | None) -> tuple[list[float], float]:
    """Seconds from the start of a run to the end of each of its cells, and those that the cells were measured for in all but
    the first, as their provenance says."""
    start, ends = time.perf_counter(), []
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "sweep"
        done = run(
            sweep_of(SWEEP), out, executor=executor, progress=lambda *_: ends.append(time.perf_counter() - start)
        )
        if done.measured != CELLS:
            raise SystemExit(f"expected {CELLS} cells, measured {done.measured}: {done.failed[:1]}")
        stored = sorted((out / "cells").glob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)
        held: list[Any] = [pd.read_parquet(path).attrs["ostools"] for path in stored]
    return ends, sum(one["provenance"]["parameters"]["cell_seconds"] for one in held[1:])


def a_cell(ends: list[float]) -> float:
    """Seconds a cell, after the first quarter: from there on every worker has begun."""
    early = CELLS // 4
    return (ends[-1] - ends[early - 1]) / (CELLS - early)


def main() -> None:
    names = ", ".join(MODELS) or "embedded"
    print(f"{CELLS} cells of {names}, one thread a worker; {ROUNDS} rounds, in which the machine's speed drifts")
    gains, overheads = [], {"one process": [], "Ray": []}
    for _ in range(ROUNDS):
        (one, alone), (single, far), (double, _) = (
            timed(how) for how in (None, RayCluster(workers=1), RayCluster(workers=2))
        )
        print(
            f"  one process {a_cell(one):.3f} s a cell, 1 worker {a_cell(single):.3f}, 2 workers {a_cell(double):.3f}; to the "
            f"first cell {one[0]:.1f}, {single[0]:.1f}, {double[0]:.1f} s; whole runs {one[-1]:.0f}, {single[-1]:.0f}, "
            f"{double[-1]:.0f} s, {one[-1] / double[-1]:.2f}x"
        )
        gains.append(a_cell(one) / a_cell(double))
        overheads["one process"].append((one[-1] - one[0]) / alone - 1)
        overheads["Ray"].append((single[-1] - single[0]) / far - 1)
    print(f"  two workers: {statistics.median(gains):.2f}x one process ({min(gains):.2f} to {max(gains):.2f})")
    for name, found in overheads.items():
        print(
            f"  beside its measurement a cell takes, {name}: {statistics.median(found):+.2%} (at most {max(found):+.2%})"
        )


if __name__ == "__main__":
    main()
