"""The logic of `make versions`: what the lowest versions are, and which differences between two sets of tables are named."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
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


def test_every_range_of_this_project_has_a_lower_bound() -> None:
    ranges = tomllib.loads((versions.ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    assert len(versions.lowest(ranges)) == len(ranges)


def test_a_range_without_a_lower_bound_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"one lower bound \(>=\) in every range, found numpy, rich<16: write one there"
    ):
        versions.lowest(["torch>=2.13", "numpy", "rich<16"])


def test_equal_tables_agree_whatever_they_took() -> None:
    found = versions.compare(_tables(), _tables(seconds=[9.0, 9.0, 9.0]))
    assert found == versions.Comparison((), numbers=2, largest=0.0)


@pytest.mark.parametrize(
    ("changed", "row"),
    [
        ({"token": ["a", "b", "c"]}, "row 1, column token: nan"),
        ({"token": ["A", None, "c"]}, "row 0, column token: 'a'"),
        ({"count": [1, 2, 4]}, "row 2, column count: 3"),
        ({"count": ["1", "2", "3"]}, "row 0, column count: 1"),
        ({"value": [1.00002e-300, math.nan, math.inf]}, "row 0, column value: 1e-300"),
        ({"value": [0.0, math.nan, math.inf]}, "row 0, column value: 1e-300"),
        ({"value": [1e-300, 0.0, math.inf]}, "row 1, column value: nan"),
        ({"value": [1e-300, math.nan, -math.inf]}, "row 2, column value: inf"),
        ({"value": [1e-300, math.nan, 1e308]}, "row 2, column value: inf"),
        ({"ids": [np.array([1, 2]), np.array([4]), np.array([])]}, r"row 1, column ids: array"),
    ],
)
def test_what_differs_is_named_by_table_row_and_column(changed: dict[str, Any], row: str) -> None:
    for one, other in ((_tables(), _tables(**changed)), (_tables(**changed), _tables())):
        found = versions.compare(one, other).differences
        assert found[0].startswith(f"first, {row.partition(': ')[0]}: ")
    assert versions.compare(_tables(), _tables(**changed)).differences[0].startswith(f"first, {row}")


def test_numbers_agree_to_one_part_in_a_hundred_thousand_of_the_larger() -> None:
    for other, agrees in ((100_000.0, True), (99_999.0, True), (99_998.9, False), (-100_000.0, False)):
        found = versions.compare({"one": pd.DataFrame({"x": [1e5]})}, {"one": pd.DataFrame({"x": [other]})})
        assert (found.differences == ()) is agrees
        assert found.largest == (1e5 - other) / 1e5
        assert found.numbers == 1


def test_columns_rows_and_tables_that_one_side_lacks_are_named() -> None:
    whole = _tables()
    short = {"first": whole["first"].iloc[:2], "second": whole["second"].rename(columns={"value": "number"})}
    assert versions.compare(whole, short).differences == (
        "first, rows: 3 with the lowest versions, 2 with the newest",
        "second, columns: ['value'] with the lowest versions, ['number'] with the newest",
    )
    assert versions.compare(whole, {"first": whole["first"]}).differences == (
        "tables: ['first', 'second'] with the lowest versions, ['first'] with the newest",
    )


@pytest.mark.parametrize(("other", "code"), [({}, 0), ({"count": [1, 2, 4]}, 1)])
def test_the_exit_code_says_whether_something_differs(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    other: dict[str, Any],
    code: int,
) -> None:
    tables = {"lowest": _tables(), "newest": _tables(**other)}
    monkeypatch.setattr(versions, "measured_in", lambda place, wanted: tables[place.name])
    assert versions.main(["--folder", str(tmp_path)]) == code
    assert f"2 tables, 2 numbers: {code} differences" in capsys.readouterr().out


def test_a_folder_that_is_a_file_is_bad_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as ended:
        versions.main(["--folder", str(tmp_path / "file")])
    assert ended.value.code == 2
    assert "expected a folder for the environments, found a file" in capsys.readouterr().err


def test_a_command_that_fails_ends_it_with_its_last_words() -> None:
    with pytest.raises(SystemExit, match=r"could not measure with .* \(exit code 3\):\nno such kernel"):
        versions._run("measure", versions.sys.executable, "-c", "print('no such kernel'); raise SystemExit(3)")


def test_tables_are_saved_under_their_names(tmp_path: Path) -> None:
    versions.save(tmp_path / "tables", {"one": pd.DataFrame({"x": [1.5]})})
    assert pd.read_parquet(tmp_path / "tables" / "one.parquet").x.tolist() == [1.5]
