"""`make versions`: the lowest versions of the ranges, and the differences between two sets of
tables.
"""

from __future__ import annotations

import math
import tomllib
from typing import Any

import numpy as np
import pandas as pd
import pytest

from scripts import versions


def _tables(**changed: Any) -> dict[str, pd.DataFrame]:
    columns = {
        "token": ["a", None, "c"],
        "count": [1, 2, 3],
        "value": [1e-300, math.nan, math.inf],
        "ids": [np.array([1, 2]), np.array([3]), np.array([])],
        "seconds": [0.1, 0.2, 0.3],
    }
    return {"first": pd.DataFrame(columns | changed), "second": pd.DataFrame({"value": [2.0]})}


def test_the_lowest_version_of_a_range_is_its_lower_bound() -> None:
    ranges = ["torch>=2.13,<2.14", "pandas >= 3.0", "uvicorn[standard]>=1,!=1.2"]
    assert versions.lowest(ranges) == ["torch==2.13", "pandas==3.0", "uvicorn[standard]==1"]
    project = tomllib.loads((versions.ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert len(versions.lowest(project["dependencies"])) == len(project["dependencies"])
    with pytest.raises(ValueError, match=r"found numpy, rich<16: write one there"):
        versions.lowest(["torch>=2.13", "numpy", "rich<16"])


CHANGED = {
    "row 1, column token: nan": {"token": ["a", "b", "c"]},
    "row 0, column count: 1": {"count": ["1", "2", "3"]},
    "row 0, column value: 1e-300": {"value": [1.00002e-300, math.nan, math.inf]},
    "row 1, column value: nan": {"value": [1e-300, 0.0, math.inf]},
    "row 2, column value: inf": {"value": [1e-300, math.nan, 1e308]},
    "row 1, column ids: array": {"ids": [np.array([1, 2]), np.array([4]), np.array([])]},
}


@pytest.mark.parametrize("row", CHANGED)
def test_what_differs_is_named_by_table_row_and_column(row: str) -> None:
    same = versions.compare(_tables(), _tables(seconds=[9.0, 9.0, 9.0]))
    assert same == versions.Comparison((), numbers=2, largest=0.0)
    assert (
        versions.compare(_tables(), _tables(**CHANGED[row]))
        .differences[0]
        .startswith(f"first, {row}")
    )
    assert versions.compare(_tables(**CHANGED[row]), _tables()).differences


def test_numbers_agree_to_one_part_in_a_hundred_thousand_of_the_larger() -> None:
    for number, agrees in ((99_999.0, True), (99_998.9, False), (-100_000.0, False)):
        tables = [{"one": pd.DataFrame({"x": [value]})} for value in (1e5, number)]
        comparison = versions.compare(*tables)
        assert (comparison.differences == ()) is agrees
        assert comparison.largest == (1e5 - number) / 1e5
