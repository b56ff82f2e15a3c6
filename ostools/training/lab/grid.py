"""The grid: positions, windows, depth and other changes, each with everything else equal, over seeds; a shared cell is trained
once.

`python -m ostools.training.lab.grid --out DIR` trains every cell that DIR does not hold yet, one after another.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from ostools.ground.errors import InputError
from ostools.ground.progress import bar
from ostools.ground.whole_numbers import checked_seeds
from ostools.training.lab.config import LabConfig
from ostools.training.lab.loop import train_lab

SEEDS = (0, 1, 2)
BASE = LabConfig()
POSITIONS: tuple[dict[str, object], ...] = (
    {"positions": "none"},
    {"positions": "learned"},
    {"positions": "sinusoidal"},
    {"positions": "alibi"},
    {"positions": "rope"},
    {"positions": "rope", "rope_base": 100.0},
)
WINDOWS = (4, 8, 16, 32, 64)
DEPTHS = (1, 2, 8, 16)
"""Beside the 4 layers of `BASE`; the deepest last, as it takes longest."""

CHANGES: tuple[dict[str, object], ...] = (
    {"dtype": "bfloat16"},
    {"positions": "none", "dtype": "bfloat16"},
    {"norm": "post"},
    {"window": 16, "sinks": 1},
)
"""One change of the training or of the block each, of cells that are there without it."""


def grid(base: LabConfig = BASE, seeds: Iterable[int] = SEEDS) -> list[LabConfig]:
    """Every cell once, the most telling first: positions, windows, depth, other changes; within each, seed by seed."""
    chosen = checked_seeds(seeds)
    found = [replace(base, **settings, seed=seed) for seed in chosen for settings in POSITIONS]  # pyright: ignore[reportArgumentType]
    found += [replace(base, window=window, seed=seed) for seed in chosen for window in WINDOWS]
    found += [replace(base, n_layers=depth, seed=seed) for depth in DEPTHS for seed in chosen]
    found += [replace(base, **settings, seed=seed) for seed in chosen for settings in CHANGES]  # pyright: ignore[reportArgumentType]
    return list(dict.fromkeys(found))


def train_grid(directory: Path, cells: Sequence[LabConfig]) -> None:
    """Train each cell in its own folder of `directory`; one that is finished is left as it is."""
    for number, config in enumerate(cells, start=1):
        with bar(f"{config.name} ({number} of {len(cells)})") as told:
            train_lab(config, directory / config.name, progress=told)
        print(f"{number} of {len(cells)}: {config.name}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m ostools.training.lab.grid", description="Train the laboratory.")
    parser.add_argument("--out", type=Path, required=True, help="directory for the models, a folder each")
    given = parser.parse_args(arguments)
    try:
        train_grid(given.out, grid())
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
