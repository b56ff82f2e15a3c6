"""The laboratory by command: `python -m studies.laboratory WHAT [PATH]`.

WHAT is a study of random decoders ("positions", "depth", "precision", "validation" or "all"),
"trained" (the stored table of trained decoders), or "train", which trains and measures the whole
grid in the directory PATH, goes on there after an interruption, and stores the table: three hours
of one core. The others print their tables, or write PATH: a chart (.png .svg .pdf) or a table
(.parquet .csv .json).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd
import torch

from ostools.ground.errors import InputError
from ostools.ground.progress import watched
from ostools.results import Result
from studies.laboratory import random_lab, summary
from studies.laboratory.charts import random_chart, trained_chart
from studies.laboratory.config import grid
from studies.laboratory.trained_lab import TABLE, measured_grid, trained_lab
from studies.laboratory.training import train_lab

TABLES = {
    "How the float64 distance falls beyond the trained lengths, from where bfloat16 hides it, and right answers": (
        summary.trained_summary
    ),
    "Does it go with the share of right answers at that length, from model to model (95%, too narrow)?": (
        summary.trained_prediction
    ),
    "Right answers, and answers that a linear probe reads off y": summary.trained_decodable,
    "Right answers in float32 and run in bfloat16": summary.trained_precisions,
    "What one change does: models of one seed with it and without it": summary.trained_changes,
}
"""The printed tables of the trained laboratory, by title."""


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m studies.laboratory", description=__doc__)
    parser.add_argument("what", choices=(*random_lab.STUDIES, "all", "trained", "train"))
    parser.add_argument(
        "path", type=Path, nargs="?", help="what is written; for train the directory of the models"
    )
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # matrices this small are not worth sharing out
    try:
        if options.what == "train":
            if options.path is None:
                parser.error("train: expected the directory of the models")
            train_and_measure(options.path)
        elif options.what == "trained":
            trained = trained_lab()
            show(
                trained,
                trained_chart,
                {title: table(trained) for title, table in TABLES.items()},
                options.path,
            )
        else:
            with watched("running decoders") as progress:
                result = random_lab.random_lab(options.what, progress=progress)
            tables = {
                "How each curve falls": result.fits,
                "From which length on rounding hides it": result.collapse,
            }
            show(result, random_chart, tables, options.path)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def train_and_measure(folder: Path) -> None:
    """Train and measure every model of the grid that `folder` does not hold yet, and store the
    table of all.
    """
    for number, config in enumerate(grid(), start=1):
        with watched(f"training {config.name} ({number} of {len(grid())})") as progress:
            train_lab(config, folder / "models" / config.name, progress)
    with watched("measuring models") as progress:
        measured_grid(folder, grid(), progress).save(TABLE)


def show(
    result: Result,
    chart: Callable[[Any], alt.TopLevelMixin],
    tables: Mapping[str, pd.DataFrame],
    path: Path | None,
) -> None:
    """Print the tables; with a path, write the chart or the result there instead."""
    if path is None:
        for title, table in tables.items():
            print(f"{title}\n\n{table.to_string(index=False, float_format='{:.4g}'.format)}\n")
    elif path.suffix in (".png", ".svg", ".pdf"):
        chart(result).save(str(path))
    else:
        result.save(path)


if __name__ == "__main__":
    sys.exit(main())
