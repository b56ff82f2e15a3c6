"""A thousand measurements in one process: what it holds grows by less than 1%.

All four in turn, on other prompts each time, under mitigations too, so that whatever keeps a
prompt, a hook, a copy of a model or a table shows. The first of them fill the caches that are meant
to stay.
"""

from __future__ import annotations

import gc
import random
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import psutil
import torch

from ostools.measure.swept import Cell
from ostools.models.files.sources import locate
from ostools.sweep import sweep_of
from ostools.sweep.cells import cells_of, checkpoint_hash, code_version, keyed
from ostools.sweep.executor import Bench, Terms
from tests.checkpoints import write_checkpoint

CASES = 1000
GROWTH = 0.01
_WARM = 0.2
"""The share of the measurements before what is held is taken as the start."""


def run(cases: int, seed: int) -> int:
    """1 where the process grew too much, or a measurement failed; the curve goes to stderr."""
    curve, errors = measured(cases, seed)
    return judged(curve, [f"a measurement failed: {error}" for error in errors], "measurements")


def judged(curve: list[int], errors: list[str], what: str) -> int:
    """The number of failures, the growth of a process over so many of `what` among them; the curve
    goes to stderr.
    """
    cases, grown = len(curve), growth(curve)
    for index in range(0, cases, max(1, cases // 10)):
        print(f"  after {index + 1}: {curve[index] / 2**20:.1f} MiB", file=sys.stderr)
    for error in errors:
        print(error)
    print(f"  {grown:+.2%} from {curve[int(_WARM * cases)] / 2**20:.1f} MiB", file=sys.stderr)
    if grown >= GROWTH:
        print(f"{cases} {what}: the process grew by {grown:.2%}")
    return len(errors) + (grown >= GROWTH)


def measured(cases: int, seed: int) -> tuple[list[int], list[str]]:
    """The bytes that the process holds after each of so many measurements, and what went wrong."""
    chosen, curve, errors = random.Random(seed), [], []
    process = psutil.Process()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        name = str(
            write_checkpoint(
                Path(folder) / "tiny", "gemma", n_layers=1, d_model=16, d_mlp=32, context=512
            )
        )
        bench = Bench(Terms("cpu", {name: checkpoint_hash(locate(name, None))}, code_version()))
        cells = _cells(name)
        for index in range(cases):
            cell = _drawn(cells[index % len(cells)], chosen)
            found = bench.measure(keyed(cell, bench.terms.checkpoints[name], "cpu"))
            if isinstance(found, str):
                errors.append(found)
            del found
            gc.collect()
            curve.append(process.memory_info().rss)
            if sys.stderr.isatty():
                print(
                    f"\r  {index + 1} of {cases}: {curve[-1] / 2**20:.1f} MiB",
                    end="",
                    file=sys.stderr,
                )
    return curve, errors


def growth(curve: list[int]) -> float:
    """From the tenth behind the first measurements to the last tenth, medians: an allocator's own
    waves are no growth.
    """
    tenth, start = max(1, len(curve) // 10), int(_WARM * len(curve))
    before, after = curve[start : start + tenth], curve[-tenth:]
    return statistics.median(after) / statistics.median(before) - 1


def _cells(model: str) -> list[Cell]:
    return cells_of(
        sweep_of(
            {
                "models": model,
                "tasks": "copy-last:uniform=true",
                "lengths": 4,
                "mitigations": ["none", "separator:every=2", "sliding-window:window=8,sinks=1"],
                "measurements": [
                    {"name": "evaluate", "max_new_tokens": 3},
                    {"name": "collapse", "dtypes": "bfloat16"},
                    "sensitivity",
                    {"name": "bounds", "variants": ["local", "theorem-5.1"]},
                ],
            }
        )
    )


def _drawn(cell: Cell, chosen: random.Random) -> Cell:
    """The same measurement on another prompt."""
    length = chosen.randint(3, 12)
    return replace(cell, lengths=(length,), seed=chosen.randrange(2**31))
