"""`make versions`: the lowest versions of the ranges, and the differences between two sets of
tables.
"""

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


CHANGED = [
    ("token", ["a", "b", "c"]),
    ("count", ["1", "2", "3"]),
    ("count", [1, 2, 4]),
    ("value", [1.00002e-300, math.nan, math.inf]),
    ("value", [1e-300, 0.0, math.inf]),
    ("value", [1e-300, math.nan, 1e308]),
    ("ids", [np.array([1, 2]), np.array([4]), np.array([])]),
]


@pytest.mark.parametrize(("column", "values"), CHANGED)
def test_what_differs_is_named_by_table_and_column(column: str, values: Any) -> None:
    """Times may differ, and numbers by one part in a hundred thousand."""
    close = {"seconds": [9.0] * 3, "value": [1.000009e-300, math.nan, math.inf]}
    assert versions.compare(_tables(), _tables(**close)) == []
    for tables in (
        (_tables(), _tables(**{column: values})),
        (_tables(**{column: values}), _tables()),
    ):
        (line,) = versions.compare(*tables)
        assert line.startswith("first")
        assert column in line
