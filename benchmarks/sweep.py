"""A sweep on Ray's workers against one process: what a second worker gains, and what a cell costs
beside its measurement.

    python -m benchmarks.sweep [MODEL ...]

Of models that are named, one round of 40 cells: whole runs too, with the workers' start.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ostools.sweep import Executor, RayCluster, Sweep, run, sweep_of


def sweep_over(models: Sequence[str]) -> Sweep:
    """Of named models 40 short cells in all; of none 16 longer ones of the embedded model."""
    values: dict[Any, Any] = {
        "models": list(models) or "embedded",
        "tasks": "count-ones-bernoulli",
        "lengths": "4:5" if models else "4:40",
        "seeds": list(range(40 // len(models) if models else 16)),
        "measurements": {"name": "evaluate", "max_new_tokens": 16},
        "device": "cpu",
    }
    return sweep_of(values)


def timed(sweep: Sweep, executor: Executor | None) -> tuple[list[float], float]:
    """Seconds from the start of a run to the end of each of its cells, and those that the cells
    were measured for in all but the first, as their provenance says."""
    start, ends = time.perf_counter(), []
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "sweep"
        done = run(
            sweep,
            out,
            executor=executor,
            progress=lambda *_: ends.append(time.perf_counter() - start),
        )
        if done.measured != len(ends):  # progress is called once a cell
            raise SystemExit(
                f"expected {len(ends)} cells, measured {done.measured}: {done.failed[:1]}"
            )
        stored = sorted((out / "cells").glob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)
        held: list[Any] = [pd.read_parquet(path).attrs["ostools"] for path in stored]
    return ends, sum(one["provenance"]["parameters"]["cell_seconds"] for one in held[1:])


def a_cell(ends: list[float]) -> float:
    """Seconds a cell, after the first quarter: from there on every worker has begun."""
    early = len(ends) // 4
    return (ends[-1] - ends[early - 1]) / (len(ends) - early)


def main(models: Sequence[str] = ()) -> None:
    sweep, rounds = sweep_over(models), 1 if models else 3
    print(
        f"{', '.join(models) or 'embedded'}, one thread a worker; {rounds} rounds, in which the machine's speed drifts"
    )
    gains, overheads = [], {"one process": [], "Ray": []}
    for _ in range(rounds):
        (one, alone), (single, far), (double, _) = (
            timed(sweep, how) for how in (None, RayCluster(workers=1), RayCluster(workers=2))
        )
        print(
            f"  one process {a_cell(one):.3f} s a cell, 1 worker {a_cell(single):.3f}, 2 workers {a_cell(double):.3f}; to the "
            f"first cell {one[0]:.1f}, {single[0]:.1f}, {double[0]:.1f} s; whole runs {one[-1]:.0f}, {single[-1]:.0f}, "
            f"{double[-1]:.0f} s, {one[-1] / double[-1]:.2f}x"
        )
        gains.append(a_cell(one) / a_cell(double))
        overheads["one process"].append((one[-1] - one[0]) / alone - 1)
        overheads["Ray"].append((single[-1] - single[0]) / far - 1)
    print(
        f"  two workers: {statistics.median(gains):.2f}x one process ({min(gains):.2f} to {max(gains):.2f})"
    )
    for name, found in overheads.items():
        print(
            f"  beside its measurement a cell takes, {name}: {statistics.median(found):+.2%} (at most {max(found):+.2%})"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
