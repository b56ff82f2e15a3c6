"""A part's progress told as the whole's: it rises, stays within, and ends where the whole does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostools.ground.progress import part_of, tell, watched


@given(shares=st.lists(st.integers(1, 6), min_size=1, max_size=5), steps=st.integers(0, 9))
def test_parts_one_after_the_other_make_the_whole(shares: list[int], steps: int) -> None:
    """However many steps a part has."""
    told: list[tuple[int, int]] = []
    start, whole = 0, sum(shares)
    for share in shares:
        part = part_of(lambda *now: told.append(now), start, start + share, whole)
        start += share
        for done in range(steps + share + 1):
            tell(part, done, steps + share)
    assert told == sorted(told)
    assert {total for _, total in told} == {told[-1][0]}


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which the test sets."""
    clock = [100.0]
    monkeypatch.setattr("ostools.ground.progress.time.monotonic", lambda: clock[0])
    return clock


@pytest.mark.parametrize(
    ("seconds_a_step", "messages"),
    [(3.0, ["2% done after 0:00:06, about 0:04:54 left"]), (0.5, [])],
)
def test_a_long_call_says_how_long_it_will_take(
    seconds_a_step: float, messages: list[str], now: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    """After 5 seconds, where more than a minute is expected in all."""
    said: list[str] = []
    with watched("sensitivity") as progress, watched("a command", said.append) as shown:
        for step in range(1, 20):
            now[0] = 100 + step * seconds_a_step
            tell(progress, step, 100)
            tell(shown, step, 100)
    assert said == messages
    expected = [
        f"ostools.sensitivity: {message}; progress=False silences this" for message in messages
    ]
    assert [record.getMessage() for record in caplog.records] == expected
