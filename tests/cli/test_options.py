"""How lengths and sizes are read."""

from __future__ import annotations

import pytest

from ostools.cli.kit.manners import parse_bytes
from ostools.cli.kit.options import parse_lengths
from ostools.ground.errors import InputError


@pytest.mark.parametrize(
    ("text", "size"), [("4GiB", 4 << 30), ("500 MB", 500_000_000), ("1.5kib", 1536), ("77", 77), (None, None)]
)
def test_sizes_of_memory(text: str | None, size: int | None) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "lengths"),
    [("1:4", [1, 2, 3, 4]), ("8,16,32", [8, 16, 32]), ("5", [5]), ("3:3", [3]), ("7, 1:3,2", [1, 2, 3, 7])],
)
def test_lengths_are_read_inclusively(text: str, lengths: list[int]) -> None:
    assert parse_lengths(text) == lengths


@pytest.mark.parametrize(
    "text",
    ["", ":", "1:", ":5", "a", "1.5", "-3", "0:4", "1:2:3", "1,,2", "1:10000000", "٣", "1" * 5000, "1e3", "0"],
)
def test_other_lengths_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="--lengths"):
        parse_lengths(text)
