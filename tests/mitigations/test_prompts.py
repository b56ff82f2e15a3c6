"""Mitigations on the prompt: what they insert, and that a broken promise is caught."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mitigations import Hint, Mitigation, MitigationError, Separator, insert
from ostools.tasks.appendix_c import AppendixTask
from tests.checkpoints import tiny_model

ITEMS = st.lists(st.sampled_from("0123456789"), min_size=1, max_size=40)


def test_the_base_class_does_nothing() -> None:
    nothing = Mitigation()
    assert insert(nothing, ("1", "2")) == ("1", "2")
    assert nothing.prompt("text") == "text"
    assert isinstance(nothing.hooks(tiny_model("llama")), nullcontext)
    nothing.verify({})


@given(items=ITEMS, every=st.integers(1, 6))
def test_a_separator_stands_after_every_kth_item_and_not_at_the_end(items: list[str], every: int) -> None:
    pieces = insert(Separator(every=every), items)
    assert [piece for piece in pieces if piece != ","] == items
    groups = "".join(pieces).split(",")
    assert all(len(group) == every for group in groups[:-1])
    assert 1 <= len(groups[-1]) <= every


@given(items=ITEMS)
def test_the_separator_writes_what_the_appendix_task_writes(items: list[str]) -> None:
    assert "".join(insert(Separator(every=3), items)) == AppendixTask("copy", separator_every=3).sequence(items)


def test_the_hint_is_the_papers() -> None:
    plain, hinted = AppendixTask("copy-last"), AppendixTask("copy-last", hint=True)
    assert Hint().prompt(plain.prompt(5)) == hinted.prompt(5)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Separator(every=0), "expected every of at least 1, found 0"),
        (lambda: Separator(text=""), "without letters and digits, found ''"),
        (lambda: Separator(text="1"), "without letters and digits, found '1'"),
        (lambda: Hint(text=" "), "expected a text, found none"),
    ],
)
def test_what_cannot_be_built(build: object, message: str) -> None:
    assert callable(build)
    with pytest.raises(MitigationError, match=message):
        build()


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
    ],
)
def test_a_sequence_that_changes_the_answer_is_refused(pieces: tuple[str, ...], message: str) -> None:
    with pytest.raises(MitigationError, match=message):
        insert(Rewrites(pieces), ("1", "0", "1"))
