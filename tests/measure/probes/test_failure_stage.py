"""The verdict of a length by exact cases; and on the trained model, against other measurements of
the same prompts.
"""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

import ostools as ost
from ostools.measure import Decodability, FailureStage
from ostools.measure.probes.failure_stage import (
    NOT_READ,
    READ,
    SAME_VECTOR,
    UNDECIDED,
    UNDECODABLE,
    UNTESTED,
    _mitigations,
    _verdict,
    untrained_as_good,
)
from ostools.mitigations import MitigationError
from ostools.reporting.findings.probes import mitigation_changes
from ostools.results import Provenance, frame_of
from tests.checkpoints import tiny_model

LENGTHS = [3, 6, 9, 12, 130, 150]


def decodability(frame: pd.DataFrame) -> Decodability:
    return Decodability(frame, Provenance.without_model(), pd.DataFrame(), pd.DataFrame())


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
    best = pd.Series(place | {"target": "number", "finding": finding, "control": "none"})
    table = pd.DataFrame([dict(best), place | {"accuracy": untrained, "control": "random weights"}])
    as_good = untrained_as_good(decodability(table), best)
    found = _verdict(prompts, best, hidden, as_good)
    return found["verdict"], found["reason"]


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


def made(verdicts: dict[str, list[str]], status: str = "active") -> FailureStage:
    """A result of these verdicts at lengths 1, 2, ..., by mitigation."""
    rows = [
        {
            "mitigation": name,
            "dtype": "float32",
            "length": n,
            "verdict": verdict,
            "status": status,
            "reason": "",
        }
        for name, each in verdicts.items()
        for n, verdict in enumerate(each, start=1)
    ]
    return FailureStage(
        pd.DataFrame(rows), Provenance.without_model(), pd.DataFrame(), decodability(pd.DataFrame())
    )


ARMS = {
    "none": [READ, READ, NOT_READ, UNDECODABLE, SAME_VECTOR, UNTESTED],
    "separator": [READ, UNDECODABLE, READ, UNDECODABLE, NOT_READ, READ],
    "hint": [READ, READ, NOT_READ, UNDECODABLE, SAME_VECTOR, UNTESTED],
}


def test_which_stage_each_mitigation_repairs_and_breaks() -> None:
    found = made(ARMS)
    expected = [
        (2, READ, UNDECODABLE, "breaks"),
        (3, NOT_READ, READ, "repairs"),
        (5, SAME_VECTOR, NOT_READ, "repairs"),
    ]
    changed = found.repaired()
    assert (
        list(changed[["length", "before", "after", "change"]].itertuples(index=False, name=None))
        == expected
    )
    assert set(changed["mitigation"]) == {"separator"}
    assert found.verdicts.columns.tolist() == ["dtype", "length", *ARMS]
    assert {name: found.verdicts[name].tolist() for name in ARMS} == ARMS
    repairs = "unread to read at n = 3 (float32); indistinguishable to unread at n = 5 (float32)"
    said = f"separator: repairs {repairs}, and breaks read to undecodable at n = 2 (float32)."
    assert [mitigation_changes(found, name) for name in ("separator", "hint")] == [
        said,
        "hint: changes no verdict.",
    ]


def test_mitigations_are_each_once_and_wrong_ones_refused() -> None:
    assert len(_mitigations(["separator", "separator:every=3", "hint"])) == 2
    assert _mitigations(None) == []
    with pytest.raises(MitigationError, match="unknown mitigation 'seperator'"):
        _mitigations(["hint", "seperator"])


@pytest.mark.slow
def test_shares_are_of_prompts_and_a_mitigation_stands_beside(embedded) -> None:
    def measured(mitigation: Any) -> Any:
        options: dict[str, Any] = {
            "lengths": LENGTHS,
            "dtypes": ["float32"],
            "mitigation": mitigation,
        }
        return ost.measure.failure_stage(embedded, "count-ones", **options)

    frame = frame_of(measured(None))
    assert frame["length"].tolist() == [3, 6, 9, 12, 130, 150]
    tested = frame[frame["prompts"] > 0]
    assert (tested[["read", "unread", "undecodable"]].sum(axis=1) == 1).all()
    assert frame["test"].tolist() == ["not tested", *["interpolated"] * 4, "extrapolated"]
    arms = ["separator:every=3", "sliding-window:window=4", "separator"]
    under = measured(arms)
    assert list(dict.fromkeys(under.frame["mitigation"])) == [
        "none",
        "separator",
        "sliding-window:window=4",
    ]
    assert list(under.under) == ["separator", "sliding-window:window=4"]
    both = frame_of(under)
    without = both[both["mitigation"] == "none"].reset_index(drop=True)
    pd.testing.assert_frame_equal(without, frame)
    for name in under.under:
        alone = frame_of(measured(name))
        rows = both[both["mitigation"] == name].reset_index(drop=True)
        pd.testing.assert_frame_equal(
            rows, alone[alone["mitigation"] == name].reset_index(drop=True)
        )


def test_a_probe_of_a_first_token_that_answers_share_is_no_probe_of_the_answer() -> None:
    """Copies of drawn digits begin with 0 or 1: a probe that says which says nothing of the rest.
    Nor of 10 and 12.
    """
    model = tiny_model("llama", seed=1, context=1024)
    how: dict[str, Any] = {"dtypes": ["float32"], "random_weights": False}
    message = "expected right answers that begin with different tokens, found"
    with pytest.raises(ost.InputError, match=message):
        ost.measure.failure_stage(
            model, "copy:uniform=true", lengths=range(3, 8), seeds=range(6), **how
        )
    with pytest.raises(ost.InputError, match=message):
        ost.measure.failure_stage(model, "count-ones", lengths=range(9, 14), target="token", **how)
