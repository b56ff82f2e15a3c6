"""Tasks that look something up: the prompt of Liu et al. from their own records, a sweep that moves
nothing but the wanted pair, copying beside a query; and the corrupt form of every task that has one.
"""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ostools as ost
from ostools import tasks
from ostools.tasks.retrieve import CopyBeside, RetrieveTask
from tests.measure.answers.test_reading import Formed


def published_prompt(records: list[tuple[str, str]], key: str) -> str:
    """The prompt as Liu et al. describe it, written out once more on its own."""
    lines = ",\n ".join(f'"{name}": "{value}"' for name, value in records)
    request = "Extract the value corresponding to the specified key in the JSON object below."
    return f'{request}\n\nJSON data:\n{{{lines}}}\n\nKey: "{key}"\nCorresponding value:'


DRAWN: dict[str, Any] = {
    "seed": st.integers(0, 2**40),
    "records": st.sampled_from(["uuid", "words"]),
}


@given(length=st.integers(1, 60), position=st.sampled_from(["first", "middle", "last"]), **DRAWN)
def test_the_object_is_json_and_holds_the_answer_at_the_asked_place(
    length: int, seed: int, records: Any, position: Any
) -> None:
    task = RetrieveTask(position=position, records=records)
    _, text, after = task.parts(task.items(length, seed))
    pairs = list(json.loads(text).items())
    assert len(pairs) == length == len(text.splitlines())
    (index,) = task.carriers(task.items(length, seed))
    assert index == {"first": 0, "middle": length // 2, "last": length - 1}[position]
    assert pairs == task.pairs(task.items(length, seed))
    name, value = pairs[index]
    assert (task.answer(length, seed), after) == (value, f'\n\nKey: "{name}"\nCorresponding value:')
    assert task.prompt(length, seed) == published_prompt(pairs, name)
    assert task.answer_line(value) == f'"{value}"'


def test_only_the_wanted_record_moves() -> None:
    swept = [RetrieveTask(position=place, records="uuid").items(9, seed=3) for place in range(9)]
    wanted = swept[0][0]
    for place, items in enumerate(swept):
        assert items.index(wanted) == place
        assert [item for item in items if item != wanted] == list(swept[0][1:])
    assert RetrieveTask(position=0, records="uuid").items(9, seed=4)[0] != wanted


def test_a_blank_separator_stands_between_records_and_another_is_refused() -> None:
    task = RetrieveTask(position="last")
    items = task.items(7)
    pieces = ost.mitigations.insert(ost.mitigations.Separator(every=3, text="\n"), items, task.key)
    assert json.loads(task.sequence(pieces)) == json.loads(task.sequence(items))
    assert task.sequence(pieces).count(",\n\n ") == 2
    assert task.key(pieces) == task.answer(7)
    assert task.parts(pieces)[2] == task.parts(items)[2]
    with pytest.raises(
        ost.InputError,
        match="',' among the records breaks the JSON object; only blank text can stand",
    ):
        task.sequence(ost.mitigations.insert(ost.mitigations.Separator(every=3), items, task.key))
    with pytest.raises(ost.InputError, match="breaks the JSON object"):
        task.sequence(["\n", *items])


@pytest.mark.parametrize(
    ("options", "length", "words"),
    [
        ({"position": -1}, 1, "position: expected a whole number of at least 0, found -1"),
        ({}, 0, "length: expected a whole number of at least 1"),
        ({"position": 5}, 5, "position: expected a whole number of at most 4, found 5"),
        ({}, 257, "length of 'words': expected a whole number of at most 256, found 257"),
    ],
)
def test_what_is_no_option_or_no_length(options: dict[str, Any], length: int, words: str) -> None:
    with pytest.raises(ost.InputError, match=words):
        RetrieveTask(**options).items(length)
    assert len(set(RetrieveTask().items(256))) == 256


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
        ost.InputError, match="formed has no corrupt form: give the corrupt prompt itself"
    ):
        Formed().corrupted()


def test_worked_examples_are_the_same_before_a_clean_and_a_corrupt_question() -> None:
    for name in ("count-ones-bernoulli", "retrieve-at-position", "copy-beside", "copy-last"):
        task = tasks.task(name)
        assert task.corrupted().example_task == task.example_task
