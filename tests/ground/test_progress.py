"""A part's progress told as the whole's: it rises, stays within, and ends where the whole does."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostools.ground.progress import Clock, LogLines, name_part, part_of, tell, watched


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
    ("seconds_a_step", "messages"), [(3.0, ["3% done after 9 s, about 5 min left"]), (0.5, [])]
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


def test_a_log_has_a_line_a_minute_that_names_the_part(
    now: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    with watched("study") as progress:
        tell(progress, 0, 4)
        for _ in range(3):
            now[0] += 50
            tell(progress, int(now[0] - 100) // 50, 4)
    end = "progress=False silences this"
    assert [record.getMessage() for record in caplog.records] == [
        f"ostools.study: 1 of 4, 25% done after 50 s, about 2 min left; {end}",
        f"ostools.study: 3 of 4, 75% done after 2 min, about 50 s left; {end}",
    ]
    lines: list[str] = []
    log = LogLines(lines.append)
    name_part("section collapse, 1 of 2")
    now[0] += 70
    log(2, 100)
    name_part("")
    assert lines == ["section collapse, 1 of 2, 2% done after 70 s"]


# Seconds of the steps, in order; the first is the time before 0 steps are told done.
WORKS = {
    "even": [0.0, *[1.0] * 40],
    "prepared for long, as a logit's gradient": [10.0, 9.0, *[0.1] * 20],
    "lengths that grow": [1.0, *[0.01 * n * n for n in range(1, 40)]],
    "the first part is quick": [1.0, *[0.2] * 20, *[1.0] * 20],
    "the first part is slow": [1.0, *[1.0] * 20, *[0.2] * 20],
    "four parts, in turn slow and quick": [0.0, *([1.0] * 10 + [0.3] * 10) * 2],
    "two steps, scores after answers": [2.0, 30.0, 20.0],
    "four cells of a sweep": [0.0, 30.0, 20.0, 40.0, 30.0],
}


@pytest.mark.parametrize("work", WORKS)
def test_after_the_first_third_the_end_is_expected_roughly_when_it_comes(
    work: str, now: list[float]
) -> None:
    """Asked every tenth of a second, between steps too."""
    (before, *steps), clock = WORKS[work], Clock()
    ends = [before + sum(steps[:count]) for count in range(len(steps) + 1)]
    told, whole = 0, ends[-1]
    for tenth in range(int(10 * whole)):
        now[0] = 100.0 + tenth / 10
        while ends[told] <= tenth / 10:
            clock.told(told, len(steps))
            told += 1
        left = clock.told(told - 1, len(steps))[1] if told > 1 else None
        if left is not None and tenth / 10 >= whole / 3:
            assert 0.4 <= (tenth / 10 + left) / whole <= 2.5, (tenth / 10, left, whole)


def test_a_step_that_takes_longer_than_the_whole_rest_was_to_take_has_no_estimate(
    now: list[float],
) -> None:
    """97% were done in 97 seconds: after 3 more there is no telling, and no "1 s left" for minutes."""
    clock = Clock()
    for percent in range(98):
        now[0] = 100.0 + percent
        _, left = clock.told(percent, 100)
    assert left == pytest.approx(3.0)
    now[0] += 4
    assert clock.told(97, 100)[1] is None
