"""A user's path is read where it is a regular file of a size that is allowed; anything else is
refused before it is read.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ostools.ground.errors import InputError
from ostools.ground.files import open_regular, read_bytes, read_text, require_regular


def test_a_regular_file_and_a_link_to_one(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"a\r\nb\rc\n")
    (tmp_path / "link").symlink_to(tmp_path / "x")
    assert read_bytes(tmp_path / "link", 7) == b"a\r\nb\rc\n"
    assert read_text(tmp_path / "x") == (tmp_path / "x").read_text() == "a\nb\nc\n"


@pytest.mark.parametrize("limit", [6, 0])
def test_more_bytes_than_the_limit(tmp_path: Path, limit: int) -> None:
    (tmp_path / "x").write_bytes(b"1234567")
    with pytest.raises(InputError, match=r"expected at most .* in '.*x', found more"):
        read_bytes(tmp_path / "x", limit)


def test_what_never_ends_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # nobody writes to it: to open it as usual would wait for ever
    (tmp_path / "device").symlink_to("/dev/zero")
    for name, kind in (("pipe", "a named pipe"), ("device", "a device"), (".", "a directory")):
        with pytest.raises(InputError, match=f"expected a regular file at .*, found {kind}"):
            require_regular(tmp_path / name)


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_a_path_that_no_file_can_have(name: str) -> None:
    with pytest.raises(InputError, match="which no file can have"):
        open_regular(Path(name))
