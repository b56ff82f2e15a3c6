"""Where the measured cells of the page stand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import cast

import pandas as pd

from ostools.measure.answers.result import Evaluation
from ostools.results import load_result, write_atomically

STORE = Path(__file__).parents[2] / "artefacts" / "behaviour"


def path_of(name: str) -> Path:
    return STORE / f"{name}.parquet"


def answers(name: str) -> Evaluation:
    """The stored answers of a cell."""
    return cast(Evaluation, load_result(path_of(name)))


def measured(cells: Iterable[str]) -> Iterator[str]:
    """Those of these cells that are stored."""
    return (name for name in cells if path_of(name).is_file())


def store(name: str, frame: pd.DataFrame) -> None:
    path_of(name).parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path_of(name), lambda part: frame.to_parquet(part))
