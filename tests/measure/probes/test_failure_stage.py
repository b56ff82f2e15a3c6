"""The verdict of a length by exact cases; and on the trained model, against other measurements of
the same prompts.
"""

import math

import pandas as pd
import pytest
from hypothesis import example
from hypothesis import given as drawn
from hypothesis import strategies as st

import ostools as ost
from ostools.measure.probes.failure_stage import (
    NOT_READ,
    READ,
    SAME_VECTOR,
    UNDECIDED,
    UNDECODABLE,
    UNTESTED,
    _verdict,
    untrained_as_good,
)
from ostools.results import Provenance, frame_of

LENGTHS = [3, 6, 9, 12, 130, 150]


def decodability(frame: pd.DataFrame) -> ost.measure.Decodability:
    return ost.measure.Decodability(frame, Provenance.without_model(), pd.DataFrame())


def verdict(
    correct: list[bool],
    right: list[bool | None],
    finding: str = "decodable",
    hidden: bool = False,
    untrained: float = 0.2,
    low: float = 0.6,
) -> tuple[str, str]:
    """Its name and its reason, for a probe that is right on 73% [`low`, ...] over all lengths."""
    prompts = pd.DataFrame({"correct": correct, "right": right, "test": "t"})
    place = {"dtype": "float32", "site": "y", "layer": 2, "test": "t", "accuracy": 0.73, "low": low}
    best = pd.Series(place | {"finding": finding, "control": "none"})
    table = pd.DataFrame([dict(best), place | {"accuracy": untrained, "control": "random weights"}])
    found = _verdict(prompts, best, hidden, untrained_as_good(decodability(table), best))
    return str(found["verdict"]), str(found["reason"])


@pytest.mark.parametrize(
    ("correct", "right", "given", "expected"),
    [
        ([True, True, False], [False, False, True], {}, READ),
        ([True, True, False], [True, True, True], {"hidden": True}, READ),
        ([False, False, True], [True, True, True], {}, NOT_READ),
        (
            [False, False, True],
            [True, True, True],
            {"finding": "not linearly decodable from 9 examples"},
            UNDECODABLE,
        ),
        ([False, False, True], [False, False, True], {}, UNDECODABLE),
        ([False, False, False], [True, False, False], {}, UNDECODABLE),
        ([False, False, True], [True, True, True], {"hidden": True}, NOT_READ),
        ([False, False, True], [False, False, False], {"hidden": True}, SAME_VECTOR),
        ([False], [None], {"hidden": True}, SAME_VECTOR),
        ([False], [None], {}, UNTESTED),
        ([True], [None], {}, READ),
    ],
)
def test_the_verdict_is_the_largest_share(correct, right, given, expected) -> None:
    assert verdict(correct, right, **given) == (expected, "")


@pytest.mark.parametrize(
    ("untrained", "low", "decided"),
    [(0.78, 0.6, False), (0.61, 0.6, False), (0.59, 0.6, True), (0.7, math.nan, True)],
)
def test_what_random_weights_show_as_well_is_not_decided(
    untrained: float, low: float, decided: bool
) -> None:
    found = verdict([False, False, True], [True, True, True], untrained=untrained, low=low)
    reason = f"the probe of random weights is as good ({untrained:.0%} against 73%)"
    assert found == ((NOT_READ, "") if decided else (UNDECIDED, reason))


@drawn(
    prompts=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=9),
    finding=st.sampled_from(["decodable", "as the length alone from 9 examples"]),
    hidden=st.booleans(),
    untrained=st.floats(0, 1),
)
@example(prompts=[(False, True)], finding="as the length alone", hidden=True, untrained=0.0)
def test_no_verdict_contradicts_its_own_probe(
    prompts: list[tuple[bool, bool]], finding: str, hidden: bool, untrained: float
) -> None:
    correct, right = map(list, zip(*prompts, strict=True))
    name, reason = verdict(correct, right, finding, hidden, untrained)
    decoded = sum(right) / len(right)
    if name == SAME_VECTOR:
        assert hidden
        assert decoded <= 0.5
    if name == NOT_READ:
        assert finding == "decodable"
        assert untrained < 0.6
    assert bool(reason) == (name == UNDECIDED)


@pytest.mark.slow
def test_shares_are_of_prompts(embedded) -> None:
    frame = frame_of(
        ost.measure.failure_stage(embedded, "count-ones", lengths=LENGTHS, dtypes=["float32"])
    )
    assert frame["length"].tolist() == [3, 6, 9, 12, 130, 150]
    assert (frame[frame["prompts"] > 0][["read", "unread", "undecodable"]].sum(axis=1) == 1).all()
    assert frame["test"].tolist() == ["not tested", *["interpolated"] * 4, "extrapolated"]
