"""What a cell costs beside its measurement: a sweep of many tiny cells, whose rows are made without
a model.

    python -m scripts.store_cost [--cells 10000]

Prints milliseconds a cell of each stage: planning (keys, and what is stored), the manifest,
writing, planning again over the full directory, reading the table; and the bytes a cell. The
numbers stand in docs/cluster.md.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from ostools.results import Provenance
from ostools.sweep import Executor, plan, results, run, sweep_of
from ostools.sweep.cells import KeyedCell
from ostools.sweep.executor import CellOutcome, Terms

Value = TypeVar("Value")


class TinyRows(Executor):
    """Gives every cell one row at once, by no model."""

    def device(self, device: str) -> str:
        return "cpu"

    def measure(
        self, cells: Sequence[KeyedCell], terms: Terms
    ) -> Generator[CellOutcome, None, None]:
        provenance = Provenance.without_model()
        for keyed_cell in cells:
            cell = keyed_cell.cell
            yield (
                keyed_cell,
                (
                    pd.DataFrame({**cell.columns, "length": list(cell.lengths), "value": 1.0}),
                    provenance,
                ),
            )


def timed(stage: str, cells: int, work: Callable[[], Value]) -> Value:
    start = time.process_time()
    value = work()
    print(f"{stage:44s} {1000 * (time.process_time() - start) / cells:6.2f} ms a cell", flush=True)
    return value


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cells", type=int, default=10_000)
    given = parser.parse_args()
    asked: dict[str, Any] = {
        "tasks": "count-ones-bernoulli",
        "lengths": 4,
        "measurements": "evaluate",
    }
    asked |= {"seeds": list(range(given.cells)), "device": "cpu"}
    sweep, executor = sweep_of(asked), TinyRows()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "sweep"
        cells = len(
            timed(
                "plan, nothing stored", given.cells, lambda: plan(sweep, out, executor=executor)
            ).pending
        )
        timed(
            "run: plan, manifest and a file a cell",
            cells,
            lambda: run(sweep, out, executor=executor),
        )
        timed("plan, everything stored", cells, lambda: plan(sweep, out, executor=executor))
        timed("run again, nothing to do", cells, lambda: run(sweep, out, executor=executor))
        rows = timed("results, as one table", cells, lambda: results(out))
        size = sum(path.stat().st_size for path in (out / "cells").iterdir())
        manifest = (out / "sweep.json").stat().st_size
        print(
            f"{cells} cells, {len(rows)} rows: {size / cells:.0f} bytes a cell, {manifest / cells:.0f} in the manifest"
        )


if __name__ == "__main__":
    main()
