"""The length from which on a decoder of the laboratory hides its pair for good."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostools.experiments.lab.starts import collapse_start


def curve(start: int, n_max: int, first: int = 1) -> tuple[list[bool], list[int]]:
    lengths = list(range(first, n_max + 1))
    return [n >= start for n in lengths], lengths


@pytest.mark.parametrize(
    ("start", "n_max", "expected"),
    [
        (50, 100, 50),  # exactly 2 n0
        (51, 100, None),  # one short of it
        (10, 42, 10),  # exactly n0 + 32
        (10, 41, None),
        (1, 33, 1),
        (438, 440, None),  # chance at the end of the range
        (101, 100, None),  # never below
    ],
)
def test_the_margin_of_the_collapse_length(start: int, n_max: int, expected: int | None) -> None:
    assert collapse_start(*curve(start, n_max)) == expected


def test_one_length_above_the_noise_starts_the_count_again() -> None:
    below, lengths = curve(20, 400)
    below[150 - 1] = False
    assert collapse_start(below, lengths) == 151


def test_lengths_with_a_gap_show_nothing_before_it() -> None:
    lengths = [*range(10, 50), *range(60, 200)]
    assert collapse_start([True] * len(lengths), lengths) == 60
    assert collapse_start([True] * 5, [1, 2, 4, 8, 400]) is None


@given(below=st.lists(st.booleans(), min_size=1, max_size=120), first=st.integers(1, 40))
def test_the_collapse_length_keeps_its_promise(below: list[bool], first: int) -> None:
    lengths = list(range(first, first + len(below)))
    start = collapse_start(below, lengths)
    candidates = [
        n
        for n in lengths
        if all(b for b, m in zip(below, lengths, strict=True) if m >= n) and lengths[-1] >= max(2 * n, n + 32)
    ]
    assert start == (min(candidates) if candidates else None)
