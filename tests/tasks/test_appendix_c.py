"""The paper's prompts stand letter by letter, and the answer keys agree with counting by hand and
by regular expression.
"""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostools.ground.errors import InputError
from ostools.tasks import task
from ostools.tasks.appendix_c import HINT, NAMES, WORDS, AppendixTask, few_shot
from tests.checkpoints import paper_text

ANSWER = " Please give the answer on the final line exactly as 'The final answer to your maths question is: xxxx', where "
MATHS, UNCLOSED = (f"{ANSWER}{place} your answer." for place in ("'xxxx' is", "'xxxx is"))
SUM = "Please perform the following sum: 1 + 1 + 1."
ONES = "Please count the number of ones in the following sequence:"
CARS = "Please count the number of times 'car' appears in the following sentence: 'fish car'."
LAST = (
    "Consider the following sequence: {}. What is the last digit in this sequence? "
    "Please answer exactly as 'The answer to your question is: <ANSWER>'"
)
FIRST = LAST.replace("the last", "the first")
HINTED = " *Hint* It's not necessarily a 1, check carefully"
COPY = "Can you copy the following number?"


@pytest.mark.parametrize(
    ("task", "length", "prompt", "answer"),
    [
        (AppendixTask("copy-last"), 5, LAST.format("11110"), "0"),
        (AppendixTask("copy-first"), 4, FIRST.format("0111"), "0"),
        (AppendixTask("copy-last", separator_every=3), 7, LAST.format("111,111,0"), "0"),
        (AppendixTask("copy-last", interleave=True), 4, LAST.format("1010"), "0"),
        (AppendixTask("copy-first", interleave=True), 4, FIRST.format("0101"), "0"),
        (AppendixTask("copy-last", hint=True), 3, LAST.format("110") + HINTED, "0"),
        (AppendixTask("copy"), 4, f"{COPY}1111", "1111"),
        (AppendixTask("copy", separator_every=3), 4, f"{COPY}111,1", "111,1"),
        (AppendixTask("sum-ones"), 3, f"{SUM}{MATHS}.", "3"),
        (AppendixTask("sum-ones", tidy=True), 3, SUM + MATHS, "3"),
        (AppendixTask("count-ones"), 12, f"{ONES}111111111111.{UNCLOSED}", "12"),
        (AppendixTask("count-ones", interleave=True, tidy=True), 5, f"{ONES}10101.{MATHS}", "3"),
        (
            AppendixTask("count-ones", mode="answer-only"),
            1,
            f"{ONES}1.{UNCLOSED} Please output only the answer.",
            "1",
        ),
        (
            AppendixTask("count-ones-figure-5"),
            3,
            "How many ones are in the following sequences?111",
            "3",
        ),
        (AppendixTask("count-word"), 2, CARS + MATHS, "1"),
    ],
)
def test_prompts_are_the_papers(task: AppendixTask, length: int, prompt: str, answer: str) -> None:
    assert (task.prompt(length), task.answer(length)) == (prompt, answer)


@pytest.mark.parametrize("name", ["copy-last", "sum-ones", "count-ones", "count-word"])
def test_prompts_stand_in_the_paper(name: str) -> None:
    assert "seq".join(AppendixTask(name).parts(("1",))[::2]) in paper_text()


def test_the_hint_and_the_questions_of_figure_5_stand_in_the_paper() -> None:
    # There its marks of emphasis are the markup's: *Hint*.
    assert f'"{HINT.strip()}"' in paper_text()
    for name in ("count-ones-figure-5", "copy"):
        assert f'"{AppendixTask(name).parts(("1",))[0]}" Followed by' in paper_text()


@given(
    name=st.sampled_from(NAMES),
    length=st.integers(1, 200),
    seed=st.integers(0, 2**62),
    uniform=st.booleans(),
    separated=st.booleans(),
)
def test_the_key_agrees_with_reading_the_prompt(
    name: str, length: int, seed: int, uniform: bool, separated: bool
) -> None:
    uniform = uniform and name in ("copy", "copy-last", "copy-first", "count-ones-figure-5")
    separator = 3 if separated and name not in ("sum-ones", "count-word") else None
    task = AppendixTask(name, uniform=uniform, separator_every=separator)
    before, sequence, after = task.parts(task.items(length, seed))
    assert before + sequence + after == task.prompt(length, seed)
    digits = sequence.replace(",", "")
    expected = {
        "copy-last": digits[-1],
        "copy-first": digits[0],
        "copy": sequence,
        "sum-ones": str(len(sequence.split(" + "))),
        "count-word": str(len(re.findall(r"\bcar\b", sequence))),
    }.get(name, str(digits.count("1")))
    assert task.answer(length, seed) == expected
    n_items = len(sequence.split()) if name == "count-word" else len(digits.replace(" + ", ""))
    assert n_items == length


def test_longer_sequences_of_a_seed_continue_the_shorter() -> None:
    task = AppendixTask("count-ones-bernoulli")
    assert task.items(40, 3)[:39] == task.items(39, 3)
    assert task.items(40, 3) != task.items(40, 4)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 20])
def test_uniform_digits_end_in_one_or_two_ones_and_never_more(length: int) -> None:
    """By the seed; a single digit is a single one."""
    task = AppendixTask("count-ones-figure-5", uniform=True)
    sequences = ["".join(task.items(length, seed)) for seed in range(200)]
    assert {len(sequence) for sequence in sequences} == {length}
    ends = [length - len(sequence.rstrip("1")) for sequence in sequences]
    assert set(ends) == ({1} if length == 1 else {1, 2})
    if length > 1:
        assert 0.3 < ends.count(1) / len(ends) < 0.7


def test_a_smaller_probability_turns_some_ones_of_the_same_sequence_into_zeros() -> None:
    """Both read the same random numbers, so that two probabilities can be compared on one seed."""
    of_paper, fair = (
        "".join(
            "".join(AppendixTask("count-ones-bernoulli", p=p).items(1000, seed))
            for seed in range(20)
        )
        for p in (0.7, 0.5)
    )
    assert all(one >= other for one, other in zip(of_paper, fair, strict=True))
    for digits, p in ((of_paper, 0.7), (fair, 0.5)):
        assert abs(digits.count("1") / 20_000 - p) < 5 * (p * (1 - p) / 20_000) ** 0.5
    assert AppendixTask("count-ones-bernoulli", p=0.7) == AppendixTask("count-ones-bernoulli")


def test_the_base_says_how_many_digits_are_drawn() -> None:
    for base in (2, 3, 10):
        for name in ("copy-last", "copy-first", "copy"):
            drawn = "".join(
                "".join(AppendixTask(name, uniform=True, base=base).items(50, seed))
                for seed in range(8)
            )
            assert set(drawn) == set("0123456789"[:base])


def test_half_the_words_are_car_and_the_others_are_all_sixteen() -> None:
    words = [word for seed in range(20) for word in AppendixTask("count-word").items(1000, seed)]
    assert abs(words.count("car") / 20_000 - 0.5) < 5 * (0.25 / 20_000) ** 0.5
    assert (set(words), len(WORDS)) == ({"car", *WORDS}, 16)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "copy-lst"}, "unknown task 'copy-lst': did you mean 'copy-last'"),
        (
            {"name": "sum-ones", "hint": True},
            "task 'sum-ones' has no option 'hint'.*copy-last, copy-first",
        ),
        (
            {"name": "count-word", "tidy": True},
            "has no option 'tidy'; tasks that have it: sum-ones, count-ones",
        ),
        (
            {"name": "copy-last", "base": 2},
            "base: expected digits that are drawn: write uniform=true,base=2",
        ),
        (
            {"name": "copy", "uniform": True, "base": 11},
            "base: expected a whole number of at most 10, found 11",
        ),
        ({"name": "count-ones-figure-5", "uniform": True, "base": 2}, "has no option 'base'"),
        (
            {"name": "count-ones-bernoulli", "p": 1.0},
            "p: expected a probability above 0 and below 1, found 1.0",
        ),
        ({"name": "count-ones-bernoulli", "p": float("nan")}, "p: expected a probability"),
        (
            {"name": "count-ones", "p": 0.5},
            "has no option 'p'; tasks that have it: count-ones-bernoulli",
        ),
        (
            {"name": "copy", "separator_every": 0},
            "separator_every: expected a whole number of at least 1, found 0",
        ),
        ({"name": "copy", "interleave": True, "uniform": True}, "exclude each other"),
    ],
)
def test_wrong_options_are_refused(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        AppendixTask(**options)


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
