"""The paper's modes: its words stand as printed, and every worked example is right."""

from __future__ import annotations

import re

import pytest

from ostools.tasks import AppendixTask, task
from ostools.tasks.appendix_c import few_shot
from tests.checkpoints import paper_text

REASONING = ("sum-ones", "count-ones", "count-ones-bernoulli", "count-word")
PRINTED = """\
Let's think step by step, showing me your reasoning. Here are a few examples:
We divide the sum into groups of 5. (1 + 1 + 1 + 1 + 1) + (1 + 1 + 1 + 1 + 1) + 1 + 1
The answer is then 2 * 5 + 2 = 12
The final answer to your maths question is: 12
Please perform the following sum: 1 + 1 + 1 + 1 + 1 + 1
We divide the sum into groups of 5.
(1 + 1 + 1 + 1 + 1) + 1
The answer is then 1 * 5 + 1 = 6
The final answer to your maths question is: 6"""


def test_the_papers_examples_stand_in_the_paper() -> None:
    assert few_shot("sum-ones") == PRINTED
    # Its transcription puts a blank line between all paragraphs.
    assert "\n".join(line for line in paper_text().splitlines() if line).count(PRINTED) == 1


def test_tidy_adds_the_question_that_the_first_example_lacks() -> None:
    question = "Please perform the following sum: " + " + ".join("1" * 12)
    opening, rest = PRINTED.split("\n", 1)
    assert few_shot("sum-ones", tidy=True) == f"{opening}\n{question}\n" + rest.replace(
        "5. (", "5.\n("
    )


@pytest.mark.parametrize("name", REASONING)
def test_examples_stand_before_the_question(name: str) -> None:
    plain = AppendixTask(name).prompt(9, 2)
    assert AppendixTask(name, mode="cot-few-shot").prompt(9, 2) == f"{few_shot(name)}\n{plain}"


def test_without_examples_only_the_request_follows() -> None:
    plain, asked = AppendixTask("count-word"), AppendixTask("count-word", mode="cot-zero-shot")
    assert (
        asked.prompt(9, 2)
        == plain.prompt(9, 2) + " Let's think step by step, showing me your reasoning."
    )


@pytest.mark.parametrize("name", REASONING)
def test_every_worked_example_counts_and_adds_up(name: str) -> None:
    _, *lines = few_shot(name, tidy=name == "sum-ones").split("\n")
    examples = [lines[start : start + 5] for start in range(0, len(lines), 5)]
    assert len(examples) == 2
    for question, opening, terms, total, answer in examples:
        sequence = re.split(r"following (?:sum|sequence|sentence): ?", question)[1].strip("'")
        items = (
            re.split(r" \+ | ", sequence) if name in ("sum-ones", "count-word") else list(sequence)
        )
        key = int(AppendixTask(name).key(items))
        assert opening == "We divide the sum into groups of 5."
        assert eval(terms) == terms.count("1") == key
        ((groups, rest, said),) = re.findall(
            r"\AThe answer is then (\d+) \* 5 \+ (\d+) = (\d+)\Z", total
        )
        groups, rest, said = int(groups), int(rest), int(said)
        assert 5 * groups + rest == said == key
        assert terms.count("(") == groups
        assert rest < 5
        assert answer == f"The final answer to your maths question is: {key}"


@pytest.mark.parametrize("name", REASONING)
@pytest.mark.parametrize("mode", ["cot-zero-shot", "cot-few-shot"])
def test_a_mode_changes_neither_the_sequence_nor_the_answer(name: str, mode: str) -> None:
    plain, asked = AppendixTask(name), task(f"{name}:mode={mode}")
    assert (asked.items(20, 3), asked.answer(20, 3)) == (plain.items(20, 3), plain.answer(20, 3))
    assert (asked.reasons, asked.trained_as) == (True, None)
    assert (plain.reasons, plain.trained_as) == (False, name)
