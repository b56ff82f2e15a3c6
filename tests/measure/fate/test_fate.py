"""The verdict of a length by exact cases; and on the trained model, against other measurements of the same prompts."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

import ostools as ost
from ostools.measure.fate.fate import READ, SAME_VECTOR, UNDECODABLE, UNREAD, UNTESTED, _verdict
from ostools.results import frame_of


def verdict(correct: list[bool], right: list[bool | None], finding: str = "decodable", hidden: bool = False) -> str:
    prompts = pd.DataFrame(
        {"correct": correct, "right": right, "absolute_error": 0.0, "said": 0.0, "label": 0.0, "test": "t"}
    )
    return _verdict(prompts, pd.Series({"target": "number", "finding": finding}), hidden)["verdict"]


@pytest.mark.parametrize(
    ("correct", "right", "given", "expected"),
    [
        ([True, True, False], [False, False, True], {}, READ),
        ([True, True, False], [True, True, True], {"hidden": True}, READ),
        ([False, False, True], [True, True, True], {}, UNREAD),
        ([False, False, True], [True, True, True], {"finding": "not linearly decodable from 9 examples"}, UNDECODABLE),
        ([False, False, True], [False, False, True], {}, UNDECODABLE),
        ([False, False, False], [True, False, False], {}, UNDECODABLE),
        ([False, False, True], [True, True, True], {"hidden": True}, SAME_VECTOR),
        ([False], [None], {}, UNTESTED),
        ([True], [None], {}, READ),
    ],
)
def test_the_verdict_is_the_largest_share(correct, right, given, expected) -> None:
    assert verdict(correct, right, **given) == expected


@pytest.fixture(scope="module")
def counted(embedded):
    return ost.fate(embedded, "count-ones", lengths=[3, 6, 9, 12, 130, 150], dtypes=["float32"], target="number")


@pytest.mark.slow
def test_the_answers_are_those_of_counting(counted, embedded) -> None:
    lengths = [3, 6, 9, 12, 130, 150]
    other = ost.counting(embedded, "count-ones", lengths=lengths, dtypes=["float32"])
    assert counted.answers["correct"].tolist() == other.frame["correct"].tolist()
    assert counted.answers["first_token_right"].tolist() == other.frame["first_token_right"].tolist()
    distances = other.frame.set_index("length")["distance"]
    assert counted.frame["distance"].tolist() == distances.loc[lengths].tolist()


@pytest.mark.slow
def test_shares_are_of_prompts_and_a_mitigation_stands_beside(counted, embedded) -> None:
    frame = frame_of(counted)
    assert frame["length"].tolist() == [3, 6, 9, 12, 130, 150]
    tested = frame[frame["prompts"] > 0]
    assert (tested[["read", "unread", "undecodable"]].sum(axis=1) == 1).all()
    assert frame["test"].tolist() == ["not tested", *["interpolated"] * 4, "extrapolated"]
    under = ost.fate(
        embedded, "count-ones", lengths=[3, 6, 9, 12, 130, 150], dtypes=["float32"], mitigation="separator:every=3"
    )
    assert set(under.frame["mitigation"]) == {"none", "separator"}
    both = frame_of(under)
    without = both[both["mitigation"] == "none"].reset_index(drop=True)
    pd.testing.assert_frame_equal(without, frame)
    changed: Any = under.repaired()
    assert (changed["before"] != changed["after"]).all()
    assert under.probes_under is not None
