"""Measure every model that `ostools.training.lab.grid` has trained, and gather the table that comes with the package."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from ostools.experiments.lab.trained import gathered, measure_grid
from ostools.ground.errors import InputError
from ostools.ground.progress import bar
from ostools.results import checked_output


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m ostools.experiments.lab.remeasure --models DIR --cells DIR --out FILE`; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m ostools.experiments.lab.remeasure", description="Measure the trained laboratory."
    )
    parser.add_argument("--models", type=Path, required=True, help="directory of `ostools.training.lab.grid`")
    parser.add_argument(
        "--cells", type=Path, required=True, help="directory for one table a model; what is there is kept"
    )
    parser.add_argument("--out", type=Path, help="the table of all cells (.parquet)")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    try:
        target = None if given.out is None else checked_output(given.out, (".parquet",), asked="--out")
        with bar("measuring models") as told:
            missing = measure_grid(given.models, given.cells, progress=told)
        for name in missing:
            print(f"not trained to the end, not measured: {name}", file=sys.stderr)
        if target is not None:
            gathered(given.cells).to_parquet(target)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
