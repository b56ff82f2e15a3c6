"""Mitigations on the prompt: what they insert, and that a broken promise is caught."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostools.mitigations import (
    Label,
    Mitigation,
    MitigationError,
    Numbered,
    Separator,
    insert,
)
from ostools.mitigations import mitigation as named
from ostools.tasks import task as named_task
from ostools.tasks.appendix_c import AppendixTask
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
        (("1", "0", "1", "1"), "only insert between the task's items"),  # added
        (("0", "1", "1"), "only insert between the task's items"),  # moved
        (("1", "0", "2"), "only insert between the task's items"),  # changed
        ((",", "1", "0", "1"), "text outside"),
        (("1", "0", "1", ","), "text outside"),
        (("1", "a1b", "0", "1"), "contains an item"),
        (("1", "", "0", "1"), "expected pieces of text, none of them empty"),
        (("1:", "1", "0", "1"), "text outside"),
        (("1", "1:", "0", "1"), "contains an item"),
        ((Label("1"), "1", "0", "1"), "a label that is no item"),
        ((Label(""), "1", "0", "1"), "a label that is no item"),
        ((Label("1:"), Label("2:"), "1", "0", "1"), "before an item"),
        (("1", "0", "1", Label("4:")), "before an item"),
    ],
)
def test_a_sequence_that_changes_the_answer_is_refused(
    pieces: tuple[str, ...], message: str
) -> None:
    with pytest.raises(MitigationError, match=message):
        insert(Rewrites(pieces), ("1", "0", "1"))
    assert insert(Rewrites(("1", "2:", "0", "1")), ("1", "0", "1")) == ("1", "2:", "0", "1")


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


# --- Positional hints


DIGIT_TASKS = (
    "copy-last",
    "copy-first",
    "count-ones",
    "count-ones-bernoulli",
    "count-ones-figure-5",
)


@given(items=ITEMS)
def test_every_item_stands_behind_its_number(items: list[str]) -> None:
    shown = "".join(
        insert(
            Numbered(),
            items,
            lambda pieces: str(len([piece for piece in pieces if piece in items])),
        )
    )
    assert shown == " ".join(f"{number}:{item}" for number, item in enumerate(items, 1))


SAYS = {
    "numbered": ("numbered from the left",),
    "positional-hint:text=*Hint* Look": ("Look",),
    "numbered + hint": ("numbered from the left", "check carefully"),
    "interleave + numbered": ("numbered from the left",),
}


@pytest.mark.parametrize("name", [*DIGIT_TASKS, "count-word"])
@pytest.mark.parametrize("length", [2, 11])
@pytest.mark.parametrize("spec", SAYS)
def test_a_positional_hint_leaves_the_answer(name: str, length: int, spec: str) -> None:
    form = AppendixTask(name)
    if spec.startswith("interleave") and name not in ("copy-last", "copy-first", "count-ones"):
        pytest.skip("interleaving fits sequences of ones")
    found = question(form, length, mitigation=named(spec))
    assert found.key == form.answer(length)
    assert found.rewritten
    assert form.parts(found.pieces)[1] in found.text
    for words in ("Look", "numbered from the left", "check carefully"):
        assert (words in found.text) is (words in SAYS[spec])


@given(items=st.lists(st.sampled_from("01"), min_size=1, max_size=12))
def test_interleaved_digits_alternate_and_only_what_that_takes_is_inserted(
    items: list[str],
) -> None:
    pieces = list(named("interleave").sequence(items))
    assert all(one != other for one, other in pairwise(pieces))
    assert len(pieces) == len(items) + sum(one == other for one, other in pairwise(items))
    assert set(pieces) <= {"0", "1"}
    left = iter(pieces)
    assert all(item in left for item in items)


@pytest.mark.parametrize("length", [1, 12])
@pytest.mark.parametrize("name", ["sum-ones", "copy"])
def test_numbers_in_the_answer_are_refused(name: str, length: int) -> None:
    with pytest.raises(MitigationError, match="does not fit this task"):
        question(AppendixTask(name), length, mitigation=Numbered())


@pytest.mark.parametrize(
    ("task", "spec", "message"),
    [
        ("copy-last", "separator + numbered", "found the separator ','"),
        ("copy-last", "numbered + separator", "take labels for items"),
        ("copy-last", "numbered + interleave", "take labels for items"),
        ("copy-last:separator_every=2", "numbered", "next to its item"),
        ("retrieve-at-position", "numbered", "breaks the JSON object"),
        ("count-word", "positional-hint", "expected digits"),
        ("retrieve-at-position", "positional-hint", "expected digits"),
    ],
)
def test_where_a_positional_hint_would_say_what_is_not_so(
    task: str, spec: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        question(named_task(task), 5, mitigation=named(spec))
