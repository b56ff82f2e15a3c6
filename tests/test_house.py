"""The house stands as docs/architecture.md says: small rooms on their floors, and the picture shows
them.

That imports run down and form no circle is import-linter's to say (`make lint`).
"""

from pathlib import Path

from scripts import house
from tests.conftest import LONGEST


def test_every_file_stands_on_a_floor_and_no_room_holds_over_a_dozen() -> None:
    files, order = house.modules(), house.floors()
    assert {room: count for room, count in house.rooms(files).items() if count > house.MOST} == {}
    assert [name for name in files if house.floor_of(name, order) < 0] == ["ostools"]
    # It is above all floors; the paper is written as a user would write it, and so is what the
    # explorer shows to be copied.
    above = [name for name, imported in house.imports().items() if "ostools" in imported]
    assert [name for name in above if not name.startswith("ostools.paper.")] == [
        "ostools.explorer.views"
    ]


def test_the_picture_is_of_this_house() -> None:
    """`make house` draws it anew where a room, or what it imports, has changed."""
    assert house.PICTURE.read_text("utf-8") == house.picture(
        house.modules(), house.imports(), house.floors()
    )


def test_the_files_that_slow_tests_begin_with_are_there() -> None:
    assert [name for name in LONGEST if not (Path(__file__).parent / name).is_file()] == []
