"""The house stands as docs/architecture.md says: imports run down, no circle, small rooms, and the picture shows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scripts import house
from tests.conftest import LONGEST


@pytest.fixture(scope="module")
def seen() -> tuple[Any, Any]:
    """All files, and which imports which: read once."""
    files = house.modules()
    return files, house.imports(files)


def test_no_import_runs_up_no_circle_and_no_room_over_a_dozen_files(seen: tuple[Any, Any]) -> None:
    (files, found), order = seen, house.floors()
    assert house.upward(found, order) == []
    assert house.circles(found) == []
    assert {room: count for room, count in house.rooms(files).items() if count > house.MOST} == {}


def test_every_file_stands_on_a_floor() -> None:
    order = house.floors()
    assert [name for name in house.modules() if house.floor_of(name, order) < 0] == ["ostools"]


def test_the_files_that_slow_tests_begin_with_are_there() -> None:
    assert [name for name in LONGEST if not (Path(__file__).parent / name).is_file()] == []


def test_the_picture_is_of_this_house(seen: tuple[Any, Any]) -> None:
    """`make house` draws it anew where a room, or what it imports, has changed."""
    files, found = seen
    assert house.PICTURE.read_text("utf-8") == house.picture(files, found, house.floors())


def test_what_is_wrong_is_found(tmp_path: Path) -> None:
    """An import in a function, for a type checker alone, of a name that a package hands on: all of them count."""
    texts = {
        "hooks/__init__.py": "",
        "ostools/__init__.py": "",
        "ostools/ground/__init__.py": "",
        "ostools/ground/words.py": "if TYPE_CHECKING:\n    from ostools.theory.paths import a\n",
        "ostools/theory/__init__.py": "from ostools.theory.paths import paths as paths\n",
        "ostools/theory/paths.py": "def paths():\n    import ostools.theory.edges\n",
        "ostools/theory/edges.py": "from ostools.theory import spectra\nimport ostools\n",
        "ostools/theory/spectra.py": "from ostools.theory import paths\nfrom ostools.theory.paths import x\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    files = house.modules(tmp_path)
    found = house.imports(files, tmp_path)
    assert found["ostools.theory.spectra"] == {"ostools.theory", "ostools.theory.paths"}
    assert house.circles(found) == [
        ["ostools.theory", "ostools.theory.edges", "ostools.theory.paths", "ostools.theory.spectra"]
    ]
    assert house.upward(found, ["hooks", "mitigations", "ground", "theory"]) == [
        ("ostools.ground.words", "ostools.theory.paths"),
        ("ostools.theory.edges", "ostools"),
    ]
