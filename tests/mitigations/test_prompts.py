"""Mitigations on the prompt: what they insert, and that a broken promise is caught."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostools.mitigations import Interleave, Mitigation, MitigationError, Separator, insert
from ostools.tasks import AppendixTask
from ostools.tasks.questions import question

ITEMS = st.lists(st.sampled_from("0123456789"), min_size=1, max_size=40)


@given(items=ITEMS, every=st.integers(1, 6))
def test_a_separator_stands_after_every_kth_item_and_not_at_the_end(
    items: list[str], every: int
) -> None:
    pieces = insert(Separator(every=every), items)
    assert [piece for piece in pieces if piece != ","] == items
    groups = "".join(pieces).split(",")
    assert all(len(group) == every for group in groups[:-1])
    assert 1 <= len(groups[-1]) <= every


@dataclass(frozen=True)
class Rewrites(Mitigation):
    """A third party's mitigation that does what it likes."""

    pieces: tuple[str, ...]

    def sequence(self, items: Sequence[str]) -> Sequence[str]:
        return self.pieces


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        (("1", "0"), "only insert between the task's items"),  # dropped
        (("1", "0", "1", "1"), "expected the answer '101' to stand"),  # added
        (("0", "1", "1"), "only insert between the task's items"),  # moved
        (("1", "0", "2"), "only insert between the task's items"),  # changed
        ((",", "1", "0", "1"), "only insert between"),
        (("1", "0", "1", ","), "only insert between"),
        (("1", "a1b", "0", "1"), "contains no item"),
        (("1", "", "0", "1"), "not empty"),
    ],
)
def test_a_sequence_that_changes_the_answer_is_refused(
    pieces: tuple[str, ...], message: str
) -> None:
    with pytest.raises(MitigationError, match=message):
        insert(Rewrites(pieces), ("1", "0", "1"))
    assert insert(Rewrites(("1", "-", "0", "1")), ("1", "0", "1")) == ("1", "-", "0", "1")


def test_with_its_key_a_task_allows_items_between_items() -> None:
    def ones(pieces: Sequence[str]) -> str:
        return str(list(pieces).count("1"))

    assert insert(Rewrites(("1", "0", ",", "0")), ("1", "0"), ones) == ("1", "0", ",", "0")
    with pytest.raises(
        MitigationError, match=r"expected the answer '2' to stand, found .* it would be '3'"
    ):
        insert(Rewrites(("1", "1", "1")), ("1", "1"), ones)
    with pytest.raises(MitigationError, match="only insert between"):
        insert(Rewrites(("1", "1")), ("1", "0", "1"), lambda pieces: "")


@given(items=st.lists(st.sampled_from("01"), min_size=1, max_size=12))
def test_interleaved_digits_alternate_and_only_what_that_takes_is_inserted(
    items: list[str],
) -> None:
    pieces = list(Interleave().sequence(items))
    assert all(one != other for one, other in pairwise(pieces))
    assert len(pieces) == len(items) + sum(one == other for one, other in pairwise(items))
    assert set(pieces) <= {"0", "1"}
    left = iter(pieces)
    assert all(item in left for item in items)


def test_what_changes_the_answer_to_the_whole_number_does_not_fit() -> None:
    with pytest.raises(MitigationError, match="does not fit this task"):
        question(AppendixTask("copy"), 4, mitigation=Interleave())
