"""The partition: parts with a bar between them, a count asked for each, and the final line read."""

import math
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ostools as ost
from ostools.measure.answers import evaluate as asking
from ostools.measure.answers.answers import Answer
from ostools.measure.answers.probability import COUNT, REASONING, SPARE
from ostools.measure.task_prompt import carrier_positions, elicit, render_prompt
from ostools.mitigations import Bar, MitigationError, Partition, insert
from ostools.tasks import task
from ostools.tasks.questions import question
from tests.checkpoints import refused, tiny_model

MATHS = "The final answer to your maths question is:"
COUNTING = ("sum-ones", "count-ones", "count-ones-bernoulli", "count-word")


@given(items=st.lists(st.sampled_from("01"), min_size=1, max_size=40), size=st.integers(1, 7))
def test_every_part_but_the_last_has_so_many_items_and_all_of_them_stand(
    items: list[str], size: int
) -> None:
    pieces = insert(Partition(size), items)
    parts = [
        list(part)
        for is_bar, part in groupby(pieces, lambda piece: isinstance(piece, Bar))
        if not is_bar
    ]
    assert [item for part in parts for item in part] == items
    assert all(len(part) == size for part in parts[:-1])
    assert 1 <= len(parts[-1]) <= size


@pytest.mark.parametrize("length", [4, 5, 11])
@pytest.mark.parametrize("name", COUNTING)
def test_a_counting_task_keeps_its_answer_and_asks_for_every_count(name: str, length: int) -> None:
    form, asked = task(name), question(task(name), length, seed=0, mitigation=Partition())
    assert (asked.key, asked.counts) == (form.answer(length), math.ceil(length / 5))
    assert asked.reasons
    assert question(form, length).counts == 0
    assert not question(form, length).reasons
    assert " First write one line for each part, 'Part 1: <count>' and so on" in asked.text


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("sum-ones", "1 + 1 + 1 | 1 + 1 + 1 | 1"),
        ("count-ones", "111 | 111 | 1"),
        ("count-word", "fish car boat | car car bird | boat"),
    ],
)
def test_the_bar_stands_in_the_place_of_what_joins_the_items(name: str, shown: str) -> None:
    form = task(name)
    assert form.parts(question(form, 7, mitigation=Partition(3)).pieces)[1] == shown


@pytest.mark.parametrize("length", [3, 11])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("copy-last", "the sum of the counts of its parts, such as count-ones, found copy-last"),
        ("copy", "the sum of the counts of its parts, such as count-ones, found copy"),
        (
            "count-ones-figure-5",
            "a final line, such as count-ones, found count-ones-figure-5: the first count would be",
        ),
    ],
)
def test_a_task_that_is_not_counted_in_parts_is_refused_at_every_length(
    name: str, message: str, length: int
) -> None:
    refused(message, question, task(name), length, mitigation=Partition())


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("partition:size=0", "expected size of at least 1, found 0"),
        ("partition:text= ", "without letters and digits, found ' '"),
        ("separator + partition", "found the separator ',': put partition first"),
    ],
)
def test_what_is_no_partition(spec: str, message: str) -> None:
    with pytest.raises(MitigationError, match=message):
        question(task("count-ones"), 7, mitigation=ost.mitigations.mitigation(spec))


def test_carriers_are_the_items_and_no_bar() -> None:
    model = tiny_model("llama", context=1024)
    for name, word in (("count-ones", "1"), ("count-word", "car")):
        asked = render_prompt(model, task(name), 11, mitigation=Partition())
        at = carrier_positions(model, asked)
        assert len(at) == int(asked.key) * len(model.tokenizer.tokenize(word))


def test_evaluate_gives_room_for_the_counts_and_reads_the_final_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, rooms = tiny_model("llama", context=2048), []

    def answers(model: Any, prompts: Any, **options: Any) -> list[Answer]:
        rooms.append(options["max_new_tokens"])
        text = f"Part 1: 5\nPart 2: 5\nPart 3: 1\n5 + 5 + 1 = 11\n\n{MATHS} 11\n"
        assert [stop(text[:-1]) for stop in options["stops"]] == [False] * len(prompts)
        return [Answer((5,), text, "eos") for _ in prompts]

    monkeypatch.setattr(asking, "answers", answers)
    how: dict[str, Any] = {"lengths": [4, 11], "elicitation": "zero-shot"}
    counted: Any = ost.evaluate(model, "count-ones", mitigation="partition", **how)
    assert counted.frame["number"].tolist() == [11, 11]
    assert counted.frame["correct"].tolist() == [False, True]
    assert (
        counted.frame["log_probability"].isna().all()
    )  # the answer does not stand right after the prompt
    ost.evaluate(model, "count-ones", **how)
    assert rooms[0] - rooms[1] == REASONING + 3 * COUNT
    line = len(model.tokenizer(f"\n{MATHS} 11", add_special_tokens=False).input_ids)
    assert rooms[1] == line + SPARE


def test_a_few_shot_prompt_has_no_place_for_the_counts() -> None:
    refused(
        r"partition asks for counts .* begins that line: expected chat or zero-shot",
        elicit,
        tiny_model("llama", context=1024),
        task("count-ones"),
        11,
        "few-shot",
        mitigation=Partition(),
    )


@pytest.mark.slow
def test_a_study_says_that_the_right_line_has_no_probability() -> None:
    how: dict[str, Any] = {"lengths": [2], "dtypes": (), "measures": ["answers", "log_probability"]}
    frame: Any = ost.study(
        tiny_model("llama", context=2048), "count-ones", mitigations=["partition"], **how
    ).frame.set_index("quantity")
    assert frame["status"].to_dict() == {
        "correct": "active",
        "log_probability": "refused",
    }
    assert frame.loc["log_probability", "reason"].startswith(
        "the model writes counts before the answer line"
    )
