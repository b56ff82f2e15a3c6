"""Whole numbers in words."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from ostools.ground.words import runs


@given(some.sets(some.integers(0, 30)))
def test_runs_name_every_number_once_and_none_besides(numbers: set[int]) -> None:
    found: list[int] = []
    for part in filter(None, runs(sorted(numbers)).split(", ")):
        first, _, last = part.partition(" to ")
        found += range(int(first), int(last or first) + 1)
    assert found == sorted(numbers)
