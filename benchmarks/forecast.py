"""The memory that commands announced, beside what they then took: each in a fresh process.

    python -m benchmarks.forecast [--large DIR]

A ratio above 1 is a forecast that was too high. `--large`: the shape of gemma-2b too, written into DIR;
without what takes an hour or more there.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks.commands import ran
from benchmarks.shapes import write_shape
from ostools.measure.bounds.variants import VARIANTS

PROMPT = "--prompt 'The capital of France is'"
TEXT = "--prompt '" + "Once upon a time there was a small dog. " * 6 + "'"
COMMANDS = {
    "sensitivity, exact": f"sensitivity --method exact {PROMPT}",
    "sensitivity, estimate": f"sensitivity --method estimate {PROMPT}",
    **{f"path-sum, {name}": f"path-sum --variant '{name}' {PROMPT}" for name in VARIANTS},
    "collapse, 1:64": "collapse --task figure-5a --lengths 1:64 --dtype bfloat16",
    "evaluate": "evaluate --task copy-last --lengths 4,8 --max-new-tokens 8",
}
LONG = {
    "sensitivity, exact, long": f"sensitivity --method exact {TEXT}",
    "path-sum, local, long": f"path-sum --variant local {TEXT}",
    "path-sum, proof, long": f"path-sum --variant proof {TEXT}",
    "collapse, 1:256": "collapse --task figure-5a --lengths 1:256 --dtype bfloat16",
}
GRID = {"33m": COMMANDS | LONG, "half": COMMANDS}
"""What is asked of which shape, beside the embedded model."""
LARGE = "gemma-2b"
QUICK = {name: line for name, line in COMMANDS.items() if name != "sensitivity, exact"}
"""Without what takes an hour or more there."""


def main(large: Path | None = None) -> None:
    print("\nforecasts of commands (memory: peak of a fresh process; seconds: from the announcement to the end)")
    print(f"{'':44}{'MiB':>8}{'forecast':>10}{'ratio':>7}{'s':>9}")
    with tempfile.TemporaryDirectory() as folder:
        _grid("embedded", "", COMMANDS | LONG)
        for shape, commands in GRID.items():
            _grid(shape, f"--model {write_shape(shape, Path(folder) / shape)}", commands)
    if large is not None:
        _grid(LARGE, f"--model {write_shape(LARGE, large / LARGE)}", QUICK)


def _grid(shape: str, model: str, commands: dict[str, str]) -> None:
    for name, line in commands.items():
        stored = "--load-dtype" if name.startswith("collapse") else "--dtype"
        dtype = f"{stored} bfloat16" if model else ""
        found = ran(f"{line} {model} {dtype}")
        memory = (
            f"{found.peak / 2**20:8.0f}{found.forecast_bytes / 2**20:10.0f}{found.forecast_bytes / found.peak:7.2f}"
        )
        seconds = f"{found.seconds:9.1f}"
        print(f"{shape + ': ' + name:44}{found.refused[:80] or memory + seconds}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Hold the forecasts of commands against what they take.")
    parser.add_argument("--large", type=Path)
    main(parser.parse_args().large)
