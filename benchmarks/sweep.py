"""A sweep on Ray's workers against one process: what a second worker gains, and what a cell costs beside its measurement.

python -m benchmarks.sweep
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from ostools.runs import Executor, RayCluster, run, sweep_of

CELLS = 24
SWEEP = {
    "tasks": "count-ones-bernoulli",
    "lengths": "4:64",
    "seeds": list(range(CELLS)),
    "measurements": {"name": "behaviour", "max_new_tokens": 16},
    "device": "cpu",
}


def finished(executor: Executor | None) -> list[float]:
    """Seconds from the start of a run to the end of each of its cells."""
    start, ends = time.perf_counter(), []
    with tempfile.TemporaryDirectory() as directory:
        done = run(
            sweep_of(SWEEP),
            Path(directory) / "sweep",
            executor=executor,
            progress=lambda *_: ends.append(time.perf_counter() - start),
        )
    if done.measured != CELLS:
        raise SystemExit(f"expected {CELLS} cells, measured {done.measured}: {done.failed[:1]}")
    return ends


def main() -> None:
    contenders = {
        "one process": finished(None),
        "Ray, 1 worker": finished(RayCluster(workers=1)),
        "Ray, 2 workers": finished(RayCluster(workers=2)),
    }
    # After the first quarter every worker has begun: from there on a cell takes what it takes.
    early = CELLS // 4
    cell = {name: (ends[-1] - ends[early]) / (CELLS - 1 - early) for name, ends in contenders.items()}
    print(f"\n{CELLS} cells of one model, embedded, one thread a worker")
    for name, ends in contenders.items():
        print(
            f"  {name:16s} {ends[-1]:7.1f} s in all, {ends[0]:6.1f} s to the first cell, then {cell[name]:6.3f} s a cell: "
            f"{cell['one process'] / cell[name]:5.2f}x one process, {cell['Ray, 1 worker'] / cell[name]:5.2f}x one worker"
        )
    print(f"  Ray's overhead a cell: {cell['Ray, 1 worker'] / cell['one process'] - 1:+.1%}")


if __name__ == "__main__":
    main()
