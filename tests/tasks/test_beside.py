"""Copying beside a query, and the corrupt form of every task that has one: prompts that differ
where the answer is decided.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostools import tasks
from ostools.ground.errors import InputError
from ostools.tasks.beside import CopyBeside

SEEDS = st.integers(0, 2**40)


@given(length=st.integers(3, 26), seed=SEEDS)
def test_the_answer_is_the_letter_beside_the_query(length: int, seed: int) -> None:
    left, right = CopyBeside("left"), CopyBeside("right")
    sequence = right.prompt(length, seed).partition(": ")[2].partition(".")[0].split()
    place = sequence.index("Q")
    assert (len(sequence), len(set(sequence))) == (length, length)
    assert 0 < place < length - 1
    answers = left.answer(length, seed), right.answer(length, seed)
    assert answers == (sequence[place - 1], sequence[place + 1])
    # The same letters, whichever side is asked for: the two prompts differ in one word.
    assert left.items(length, seed) == right.items(length, seed)
    corrupt = left.corrupted(), right.corrupted()
    assert tuple(task.answer(length, seed) for task in corrupt) == answers[::-1]
    assert left.corrupted().corrupted() == left


ONE_DIGIT = [
    "copy-last",
    "copy-first",
    "copy-first:uniform=true,base=3",
    "count-ones",
    "count-ones-bernoulli",
]


@pytest.mark.parametrize("name", ONE_DIGIT)
@given(length=st.integers(2, 30), seed=SEEDS)
def test_one_digit_is_flipped_and_the_answer_is_another(name: str, length: int, seed: int) -> None:
    task = tasks.task(name)
    clean, corrupt = task.prompt(length, seed), task.corrupted().prompt(length, seed)
    assert len(clean) == len(corrupt)
    assert sum(first != second for first, second in zip(clean, corrupt, strict=True)) == 1
    answers = [int(form.answer(length, seed)) for form in (task, task.corrupted())]
    assert abs(answers[0] - answers[1]) == 1 or (
        task.name.startswith("copy") and set(answers) == {0, 2}
    )


def test_ten_ones_and_a_zero_against_eleven_ones() -> None:
    task = tasks.task("copy-last")
    assert "".join(task.items(11)) == "11111111110"
    assert "".join(task.corrupted().items(11)) == "11111111111"


@given(length=st.integers(2, 20), seed=SEEDS, position=st.sampled_from(["first", "middle", "last"]))
def test_two_records_exchange_their_values(length: int, seed: int, position: str) -> None:
    task: Any = tasks.task(f"retrieve-at-position:position={position}")
    clean, corrupt = (form.pairs(form.items(length, seed)) for form in (task, task.corrupted()))
    assert [key for key, _ in clean] == [key for key, _ in corrupt]
    assert [value for _, value in sorted(clean)] != [value for _, value in sorted(corrupt)]
    assert sorted(value for _, value in clean) == sorted(value for _, value in corrupt)
    assert sum(first != second for first, second in zip(clean, corrupt, strict=True)) == 2
    assert task.answer(length, seed) != task.corrupted().answer(length, seed)


def test_a_task_of_ones_own_needs_no_corrupt_form() -> None:
    with pytest.raises(
        InputError, match="copy-beside has no corrupt form: give the corrupt prompt itself"
    ):
        tasks.Task.corrupted(CopyBeside())


def test_worked_examples_are_the_same_before_a_clean_and_a_corrupt_question() -> None:
    for name in ("count-ones-bernoulli", "retrieve-at-position", "copy-beside", "copy-last"):
        task = tasks.task(name)
        assert task.corrupted().example_task == task.example_task
