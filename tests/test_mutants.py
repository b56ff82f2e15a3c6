"""The machinery of `make mutants`: what is left alone, which tests see a file, and a table of survivors that can be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import mutants


def test_annotations_are_found_where_they_stand() -> None:
    text = "def f(x: int | None = 3) -> str | None:\n    y: int = x + 1\n    return y\n"
    found = [text.splitlines()[first[0] - 1][first[1] : last[1]] for first, last in mutants.annotated_places(text)]
    assert sorted(found) == ["int", "int | None", "str | None"]


@pytest.mark.slow
@pytest.mark.parametrize("room", mutants.ROOMS)
def test_every_file_of_a_room_has_tests_that_reach_it(room: str) -> None:
    """The test file of its own name comes before those that meet it by way of others."""
    files = mutants.files_of(room)
    assert files
    assert [path for path in files if not mutants.tests_of(path)] == []


@pytest.mark.slow
def test_the_nearest_test_comes_first() -> None:
    assert mutants.tests_of("ostools/theory/spectra.py")[0] == "tests/theory/test_spectra.py"
    assert mutants.tests_of("hooks/strips.py")[0].startswith("tests/hooks/")


def test_the_table_of_survivors_is_of_lines_that_stand_in_the_files() -> None:
    for (path, was, _), why in mutants.triaged().items():
        assert why.startswith(("equivalent: ", "law: ")), (path, was)
        lines = [line.strip() for line in (mutants.ROOT / path).read_text("utf-8").splitlines()]
        assert was in lines or why.startswith("law: "), (path, was)


def test_a_row_is_read(tmp_path: Path) -> None:
    table = tmp_path / "table.md"
    table.write_text(
        "| file | was | became | why |\n|---|---|---|---|\n| `a.py` | `x = 1` | `x = 2` | equivalent: unread |\n"
    )
    assert mutants.triaged(table) == {("a.py", "x = 1", "x = 2"): "equivalent: unread"}
