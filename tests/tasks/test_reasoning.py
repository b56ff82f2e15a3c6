"""The paper's modes: its words stand, and every worked example is right."""

from __future__ import annotations

import re

import pytest

from ostools.ground.errors import InputError
from ostools.tasks import AppendixTask, label, names, task
from ostools.tasks.reasoning import few_shot

REASONING = ("sum-ones", "count-ones", "count-ones-bernoulli", "count-word")
TWELVE = (
    "We divide the sum into groups of 5. (1 + 1 + 1 + 1 + 1) + (1 + 1 + 1 + 1 + 1) + 1 + 1 "
    "The answer is then 2 * 5 + 2 = 12 The final answer to your maths question is: 12"
)


def test_the_papers_worked_sum_stands_word_for_word() -> None:
    prompt = AppendixTask("sum-ones", mode="cot-few-shot").prompt(3)
    assert prompt.startswith(
        AppendixTask("sum-ones").prompt(3) + " Let's think step by step, showing me your reasoning. "
    )
    assert f"Here are a few examples:\n1+1+1+1+1+1+1+1+1+1+1+1\n{TWELVE}\n" in prompt


def test_without_examples_only_the_request_follows() -> None:
    plain, asked = AppendixTask("count-word"), AppendixTask("count-word", mode="cot-zero-shot")
    assert asked.prompt(9, 2) == plain.prompt(9, 2) + " Let's think step by step, showing me your reasoning."


@pytest.mark.parametrize("name", REASONING)
def test_every_worked_example_counts_and_adds_up(name: str) -> None:
    _, *lines = few_shot(name).split("\n")
    assert len(lines) >= 4
    for sequence, worked in zip(lines[::2], lines[1::2], strict=True):
        key = AppendixTask(name).key(
            re.split(r"[+ ]", sequence) if name in ("sum-ones", "count-word") else list(sequence)
        )
        assert worked.endswith(f"The final answer to your maths question is: {key}")
        terms = worked.split(" The answer")[0]
        assert terms.count("1") == int(key)
        if sum_ := re.search(r"(\d+) \* 5 \+ (\d+) = (\d+)", worked):
            groups, rest, total = map(int, sum_.groups())
            assert 5 * groups + rest == total == int(key)
            assert rest < 5
            assert terms.count("(") == groups


@pytest.mark.parametrize("name", REASONING)
@pytest.mark.parametrize("mode", ["cot-zero-shot", "cot-few-shot"])
def test_a_mode_changes_neither_the_sequence_nor_the_answer(name: str, mode: str) -> None:
    plain, asked = AppendixTask(name), task(f"{name}:mode={mode}")
    assert asked.items(20, 3) == plain.items(20, 3)
    assert asked.answer(20, 3) == plain.answer(20, 3)
    assert asked.reasons
    assert asked.trained_as is None
    assert not plain.reasons
    assert plain.trained_as == name


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("copy-last:mode=cot-few-shot", "task 'copy-last' has no option 'mode'; tasks that have it: sum-ones"),
        ("count-ones:mode=cot-fewshot", "expected mode to be 'none' or 'cot-zero-shot' or 'cot-few-shot'"),
        ("cuont-ones", "unknown task 'cuont-ones': did you mean 'count-ones'"),
        ("count-ones:hint=true", "task 'count-ones' has no option 'hint'"),
        ("copy-last:unifrom=true", "has no option 'unifrom': did you mean 'uniform'"),
    ],
)
def test_wrong_specs_are_refused(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        task(spec)


@pytest.mark.parametrize(
    "spec",
    [
        "copy-last",
        "copy-last:uniform=True",
        "count-ones:mode=cot-few-shot",
        "copy:separator_every=3",
        "copy-first:interleave=True",
    ],
)
def test_a_label_leads_back(spec: str) -> None:
    assert label(task(spec)) == spec
    assert task(label(task(spec))) == task(spec)


def test_every_name_is_a_task() -> None:
    for name in names():
        assert task(name).name == name
        assert task(task(name)) is not None
