"""A part's progress told as the whole's: it rises, stays within, and ends where the whole does."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostools.ground.progress import part_of, tell, watched


@given(
    shares=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    steps=st.integers(0, 9),
    units=st.sampled_from([None, 1, 100]),
)
def test_parts_one_after_the_other_make_the_whole(
    shares: list[int], steps: int, units: int | None
) -> None:
    """In the part's own steps where they are in proportion to the shares, else in units of the
    whole.
    """
    told: list[tuple[int, int]] = []
    whole = sum(shares)
    ends = [sum(shares[: index + 1]) for index in range(len(shares))]
    for share, end in zip(shares, ends, strict=True):
        part = part_of(lambda *now: told.append(now), end - share, end, whole, units)
        total = steps * share if units is None else steps + share  # any number at all, in units
        for done in range(total + 1):
            tell(part, done, total)
    assert all(0 <= done <= total for done, total in told)
    assert all(one[0] * other[1] <= other[0] * one[1] for one, other in pairwise(told))
    assert len({total for _, total in told}) == 1
    if steps or units is not None:
        assert told[-1][0] == told[-1][1]


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which the test sets."""
    clock = [100.0]
    monkeypatch.setattr("ostools.ground.progress.time.monotonic", lambda: clock[0])
    return clock


@pytest.mark.parametrize(
    ("seconds_a_step", "messages"), [(3.0, ["2% done after 6 s, about 5 min left"]), (0.5, [])]
)
def test_a_long_call_says_how_long_it_will_take(
    seconds_a_step: float, messages: list[str], now: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    """After 5 seconds, where more than a minute is expected in all."""
    with watched("sensitivity") as progress:
        for step in range(1, 20):
            now[0] = 100 + step * seconds_a_step
            tell(progress, step, 100)
    expected = [
        f"ostools.sensitivity: {message}; progress=False silences this" for message in messages
    ]
    assert [record.getMessage() for record in caplog.records] == expected
