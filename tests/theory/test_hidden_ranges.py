"""Which tried lengths make a range: eight hidden ones in a row, joined over gaps of fewer than eight."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostools.theory.hidden_ranges import IN_A_ROW, hidden_ranges


def spans(hidden: list[bool], lengths: list[int]) -> list[tuple[int, int, int, int, bool]]:
    return [(one.first, one.last, one.lengths_tried, one.hidden, one.open) for one in hidden_ranges(hidden, lengths)]


def within(first: int, last: int, n_max: int, apart: tuple[int, ...] = ()) -> tuple[list[bool], list[int]]:
    lengths = list(range(1, n_max + 1))
    return [first <= n <= last and n not in apart for n in lengths], lengths


@pytest.mark.parametrize(
    ("first", "last", "n_max", "apart", "expected"),
    [
        (138, 501, 256, (), [(138, 256, 119, 119, True)]),
        (138, 501, 300, (), [(138, 300, 163, 163, True)]),
        (138, 501, 512, (), [(138, 501, 364, 364, False)]),
        (138, 501, 144, (), []),  # seven in a row at the end
        (138, 501, 145, (), [(138, 145, 8, 8, True)]),
        (138, 501, 512, (200,), [(138, 501, 364, 363, False)]),  # one length apart by chance
        (138, 501, 512, tuple(range(200, 207)), [(138, 501, 364, 357, False)]),
        (138, 501, 512, tuple(range(200, 208)), [(138, 199, 62, 62, False), (208, 501, 294, 294, False)]),
        (600, 700, 512, (), []),
    ],
)
def test_where_a_range_begins_and_ends(
    first: int, last: int, n_max: int, apart: tuple[int, ...], expected: list[tuple[int, int, int, int, bool]]
) -> None:
    assert spans(*within(first, last, n_max, apart)) == expected


@given(hidden=st.lists(st.booleans(), max_size=120), step=st.integers(1, 3))
def test_a_range_keeps_its_promise(hidden: list[bool], step: int) -> None:
    """Against the definition, length by length."""
    lengths = [step * (n + 1) for n in range(len(hidden))]
    solid = {
        index
        for start in range(len(hidden) - IN_A_ROW + 1)
        if all(hidden[start : start + IN_A_ROW])
        for index in range(start, start + IN_A_ROW)
    }
    found = hidden_ranges(hidden, lengths)
    places = [(lengths.index(one.first), lengths.index(one.last)) for one in found]
    assert solid <= {index for start, end in places for index in range(start, end + 1)}
    assert all({start, end} <= solid for start, end in places)
    assert all(later[0] - end > IN_A_ROW for (_, end), later in pairwise(places))
    for one, (start, end) in zip(found, places, strict=True):
        inside = hidden[start : end + 1]
        assert (one.lengths_tried, one.hidden, one.following) == (len(inside), sum(inside), len(hidden) - 1 - end)
        assert 2 * one.hidden > one.lengths_tried
        gaps = [index for index in range(start, end + 1) if index not in solid]
        assert all(any(near in solid for near in range(gap - IN_A_ROW, gap)) for gap in gaps)
