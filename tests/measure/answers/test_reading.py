"""Texts as Gemma, Llama and base models write them, and what is read in them; the laws that reading
and generation share.
"""

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ostools.measure.answers.answers import Answer, line_written
from ostools.measure.answers.judging import judge
from ostools.measure.answers.reading import (
    CUT_OFF,
    HAS_ANSWER,
    SOMETHING_ELSE,
    number_in,
    reader,
    reader_of,
)
from ostools.tasks import Question, Task, task
from ostools.tasks.questions import question

MATHS = "The final answer to your maths question is:"
COPY = "The answer to your question is:"
ASKED = "Please give the answer on the final line exactly as 'The final answer to your maths question is: xxxx'"
A, E, C = HAS_ANSWER, SOMETHING_ELSE, CUT_OFF


def posed(spec: str | Task, length: int = 12) -> Question:
    return replace(question(task(spec), length), text="x")


def answer(text: str, ended: str = "eos") -> Answer:
    return Answer((1,), text, ended)  # pyright: ignore[reportArgumentType]


# What a model wrote to "count twelve ones", how it ended, and what is read: kind, line, number,
# correct.
COUNTED: dict[str, tuple[str, str, str, str | None, int | None, bool]] = {
    # Gemma, instruction-tuned
    "gemma plain": (f"{MATHS} 12", "eos", A, f"{MATHS} 12", 12, True),
    "gemma bold": (f"**{MATHS} 12**", "eos", A, f"{MATHS} 12**", 12, True),
    "gemma preamble": (
        f"Sure, here is the answer:\n\n{MATHS} 12",
        "eos",
        A,
        f"{MATHS} 12",
        12,
        True,
    ),
    "gemma goes on": (
        f"{MATHS} 12\n\nI hope this helps! Ask me 3 more.",
        "eos",
        A,
        f"{MATHS} 12",
        12,
        True,
    ),
    "gemma goes on, same line": (f"{MATHS} 12. I hope this helps!", "eos", A, None, 12, True),
    "gemma explains": (
        f"{MATHS} 12\n\n**Explanation:**\n\nThere are 6 + 6 ones.",
        "eos",
        A,
        f"{MATHS} 12",
        12,
        True,
    ),
    "gemma other words": (f"{MATHS} 12 ones", "eos", A, None, 12, True),
    "gemma in words": (f"{MATHS} twelve", "eos", E, f"{MATHS} twelve", None, False),
    "gemma no form": ("There are 12 ones.", "eos", E, "There are 12 ones.", None, False),
    "gemma refuses": ("I cannot count that.\nSorry!", "eos", E, "Sorry!", None, False),
    # Llama, chat
    "llama latex": (f"{MATHS} $12$", "eos", A, f"{MATHS} $12$", 12, True),
    "llama boxed": (f"{MATHS} $\\boxed{{12}}$.", "eos", A, None, 12, True),
    "llama boxed line": (f"\\boxed{{{MATHS} 12}}", "eos", A, f"{MATHS} 12}}", 12, True),
    "llama boxed text": (f"$\\boxed{{\\text{{{MATHS} }} 12}}$", "eos", A, None, 12, True),
    "llama display": (
        f"{MATHS}\n\n\\[\n\\boxed{{12}}\n\\]\n",
        "eos",
        A,
        f"{MATHS} \\boxed{{12}}",
        12,
        True,
    ),
    "llama next line": (f"{MATHS}\n\n**12**", "eos", A, f"{MATHS} **12**", 12, True),
    "llama no colon": (f"{MATHS[:-1]} 12.", "eos", A, None, 12, True),
    "llama equation": (f"{MATHS} 2 * 5 + 2 = 12", "eos", A, None, 12, True),
    "llama thousands": (f"{MATHS} 1,012", "eos", A, None, 1012, False),
    "llama corrects itself": (
        f"{MATHS} 10\nWait, no. {MATHS} 12\n",
        "eos",
        A,
        f"{MATHS} 12",
        12,
        True,
    ),
    "llama corrects itself, same line": (
        f"{MATHS} 10. No: {MATHS} 12",
        "eos",
        A,
        f"{MATHS} 12",
        12,
        True,
    ),
    "llama quotes the form": (
        f"I write '{MATHS} xxxx'.\n{MATHS} 12",
        "eos",
        A,
        f"{MATHS} 12",
        12,
        True,
    ),
    "llama only quotes the form": (f"{MATHS} xxxx", "eos", E, f"{MATHS} xxxx", None, False),
    "llama two numbers": (f"{MATHS} 12 or 13", "eos", E, f"{MATHS} 12 or 13", None, False),
    "llama fraction": (f"{MATHS} 12.5", "eos", E, None, None, False),
    "llama thinks": (
        f"<think>\n{MATHS} 7\nNo.\n</think>\n\n{MATHS} 12",
        "eos",
        A,
        f"{MATHS} 12",
        12,
        True,
    ),
    "llama thinks on": (f"<think>\n{MATHS} 12\nNo.\n", "length", C, "", None, False),
    # base models
    "base": (f"\n{MATHS} 12\n", "stop", A, f"{MATHS} 12", 12, True),
    "base, new question": (
        f"\n\n{MATHS} 12\n\nPlease count the number of ones in the following sequence:111. {ASKED}\n\n{MATHS} 3\n",
        *("length", A, f"{MATHS} 12", 12, True),
    ),
    "base, new question, same line": (
        f" {MATHS} 12 Please count the number of ones in the following sequence:11. {MATHS} 2",
        *("length", A, f"{MATHS} 12", 12, True),
    ),
    "base, its question again": (
        f"\nPlease count the number of ones in the following sequence:{'1' * 12}. {ASKED}\n{MATHS} 12\n",
        *("length", A, f"{MATHS} 12", 12, True),
    ),
    "base, another question only": (
        f"\nPlease count the number of ones in the following sequence:{'1' * 13}. {ASKED}\n{MATHS} 13\n",
        *("length", E, "", None, False),
    ),
    "base, exam": (
        f"\nQ: How many?\nA: {MATHS} 12\n\nQ: And 7?\nA: {MATHS} 7",
        "length",
        A,
        None,
        12,
        True,
    ),
    "base, on one line": (
        f"We divide. (1 + 1) The answer is then 2 * 5 + 2 = 12 {MATHS} 12",
        "eos",
        A,
        None,
        12,
        True,
    ),
    "base, sequence": ("1111111\n1111111\n", "length", C, "1111111", None, False),
    "base, asked again": (
        f" {ASKED}, where 'xxxx' is your answer.\n\n{MATHS} 12\n",
        "length",
        A,
        None,
        12,
        True,
    ),
    "cut in the number": (f"{MATHS} 1", "length", C, f"{MATHS} 1", None, False),
    "cut in the line": (f"{MATHS} 12 as", "length", C, f"{MATHS} 12 as", None, False),
    "cut before it": (
        "We divide the sum into groups of 5.\n(1 + 1",
        "length",
        C,
        "(1 + 1",
        None,
        False,
    ),
    "cut behind it": (f"{MATHS} 12\nI ho", "length", A, f"{MATHS} 12", 12, True),
}


@pytest.mark.parametrize("name", COUNTED)
def test_counts_as_models_write_them(name: str) -> None:
    text, ended, kind, line, number, correct = COUNTED[name]
    for spec in ("count-ones", "count-ones:mode=cot-zero-shot", "count-ones:mode=cot-few-shot"):
        found = judge(posed(spec), answer(text, ended))
        assert (found.kind, found.number, found.correct) == (kind, number, correct)
        assert found.line == (found.line if line is None else line)
        assert found.absolute_error == (None if number is None else abs(number - 12))
        assert found.correct == (found.absolute_error == 0)


# Tasks that ask for no form: the first line that could be the answer. Then a digit that is copied,
# in the paper's form.
BARE: list[tuple[str, str, str, str, bool, int | None]] = [
    ("copy", "1" * 12, "eos", A, True, None),
    (
        "copy",
        f"Sure! Here is the number:\n\n**{'1' * 12}**\n\nI hope this helps 12 times!",
        "eos",
        A,
        True,
        None,
    ),
    (
        "copy",
        "1" * 11 + "\n\nCan you copy the following number?11\n" + "1" * 12,
        "length",
        A,
        False,
        None,
    ),
    (
        "copy",
        f"\nCan you copy the following number?{'1' * 12}\n{'1' * 12}\n",
        "length",
        A,
        True,
        None,
    ),
    ("copy", "\nCan you copy the following number?111\n111\n", "length", E, False, None),
    ("copy", "Of course.", "eos", E, False, None),
    ("copy:separator_every=6", "111111,111111", "eos", A, True, None),
    *(
        ("copy:separator_every=6", text, "eos", A, False, None)
        for text in ("1" * 12, "111111, 111111")
    ),
    ("copy", "1" * 12, "length", C, False, None),
    ("count-ones-figure-5", "12", "eos", A, True, 12),
    ("count-ones-figure-5", "\n\nThere are 12 ones.\nThere are 3 zeros.", "eos", A, True, 12),
    ("count-ones-figure-5", "Let me count.\n\n**12**\n", "length", A, True, 12),
    (
        "count-ones-figure-5",
        "\nHow many ones are in the following sequences?1\n1\n",
        "length",
        E,
        False,
        None,
    ),
    ("count-ones-figure-5", "Many.", "eos", E, False, None),
    ("copy-last", f"{COPY} 0", "eos", A, True, None),
    ("copy-last", f"{COPY} <ANSWER>0</ANSWER>", "eos", A, True, None),
    ("copy-last", f"{COPY} <ANSWER>", "eos", E, False, None),
    ("copy-last", f"I answer as '{COPY} <ANSWER>':\n{COPY} 0", "eos", A, True, None),
    ("copy-last", f'{COPY} "0".', "eos", A, True, None),
    ("copy-last", f"{COPY} zero", "eos", A, False, None),
    ("copy-last", f"{COPY} 00", "eos", A, False, None),
    ("copy-last", f"{COPY} the digit 0", "eos", A, False, None),
    ("copy-last", "0", "eos", E, False, None),
    (
        "copy-last",
        f"\nConsider the following sequence: 110. What is it?\n{COPY} 0",
        "eos",
        E,
        False,
        None,
    ),
]


@pytest.mark.parametrize(("spec", "text", "ended", "kind", "correct", "number"), BARE)
def test_bare_answers(
    spec: str, text: str, ended: str, kind: str, correct: bool, number: int | None
) -> None:
    found = judge(posed(spec), answer(text, ended))
    assert (found.kind, found.correct) == (kind, correct)
    assert number is None or found.number == number


def test_a_retrieved_value_is_the_first_that_is_named() -> None:
    asked = posed("retrieve-at-position:records=uuid", 5)
    form: Any = asked.task
    values = [value for _, value in form.pairs(asked.pieces)]
    other = next(value for value in values if value != asked.key)
    for text, kind, correct in (
        (f' "{asked.key}"\n}}\n{{"{other}"', A, True),
        (f"{asked.key}", A, True),
        (f'The value is:\n"{asked.key}"', A, True),
        (f'The value is "{asked.key}".', A, False),
        (f'"{other}"\n"{asked.key}"', A, False),
        ('"none of them"', E, False),
    ):
        found = judge(asked, answer(text))
        assert (found.kind, found.correct) == (kind, correct)


@dataclass(frozen=True)
class Formed(Task):
    """A third party's task with words on both sides of its answer, or signs; and numbers that are
    not whole.
    """

    name: str = "formed"
    form: str = "#### {}"
    answered: str = "St. Paul (*)"

    @property
    def numeric(self) -> bool:
        return self.answered == "1.5"

    def items(self, length: int, seed: int = 0) -> tuple[str, ...]:
        return ("1",) * length

    def parts(self, pieces: Any) -> tuple[str, str, str]:
        return "Say ", "".join(pieces), "."

    def key(self, pieces: Any) -> str:
        return self.answered

    def carriers(self, items: Any) -> tuple[int, ...]:
        return (0,)

    def answer_line(self, answer: str) -> str:
        return self.form.format(answer)


@pytest.mark.parametrize("form", ["#### {}", "{} is my answer", "My answer {} ends", "{}"])
def test_a_third_partys_form(form: str) -> None:
    asked = posed(Formed(form=form))
    for said, correct in (("St. Paul (*)", True), ("St. Peter (*)", False)):
        found = judge(asked, answer(f"**{form.format(said)}**\n"))
        assert (found.kind, found.correct) == (A, correct)


def test_exactly_the_right_line_is_right_whatever_the_answer_looks_like() -> None:
    asked = posed(Formed(form="{}", answered="1.5"))
    found = judge(asked, answer("\n1.5"))
    assert (found.kind, found.correct, found.number, found.absolute_error) == (A, True, None, None)
    assert judge(asked, answer("1.5", "length")).kind == C
    assert judge(asked, answer("2.5")).kind == E


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(
            ("12,345,678", 12345678),
            ("1{,}000", 1000),
            ("1\\,000", 1000),
            ("1,00", None),
            ("1,0000", None),
        ),
        *(
            ("1 000", None),
            ("1.5", None),
            ("-3", None),
            ("\u22123", None),
            ("12th", None),
            ("3 = 4", 4),
            ("", None),
        ),
        *(("\u0661\u0662", None), ("1" * 18, int("1" * 18)), ("1" * 19, None)),
    ],
)
def test_numbers(text: str, number: int | None) -> None:
    assert number_in(text, True) == number


SPECS = (
    "count-ones",
    "sum-ones:mode=cot-few-shot",
    "copy-last",
    "copy",
    "count-ones-figure-5",
    "count-word",
)
PIECES = [
    *(
        f"{MATHS} 12",
        f"{MATHS} xxxx",
        MATHS,
        f"{COPY} 0",
        f"{COPY} <ANSWER>",
        "12",
        "7",
        "1" * 12,
        "1 + 1 = 2",
    ),
    *(
        "\n",
        "\n\n",
        " ",
        "\r\n",
        "**",
        "$",
        "I hope this helps!",
        "Please perform the following sum: ",
        "Wait: ",
    ),
    *(
        "Please count the number of ones in the following sequence:",
        "Please count the number of ones in the following",
    ),
    *(
        "Can you copy the following number?",
        "How many ones are in the following sequences?",
        " + ".join("1" * 12),
    ),
    *(
        "Consider the following sequence: ",
        "1" * 11 + "0",
        ". ",
        "<think>",
        "</think>",
        "```",
        "s",
        "The final answer",
    ),
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=9).map("".join)
FEW, MANY = (20, 40) if settings().max_examples <= 20 else (60, 150)


@given(st.sampled_from(SPECS), TEXTS, st.sampled_from(["eos", "stop", "length"]))
@example(
    "count-ones",
    f"{MATHS} 12\nPlease count the number of ones in the following sequences. {MATHS} 7\n7\n",
    "eos",
)
@settings(max_examples=FEW)
def test_what_generation_stops_at_is_what_the_whole_text_says(
    spec: str, text: str, ended: str
) -> None:
    """At whatever sign it is stopped: the texts that generation would not have seen change nothing."""
    asked = posed(spec)
    stop = reader_of(asked).closed
    ends = [end for end in range(len(text) + 1) if stop(text[:end])]
    if not ends:
        return
    assert ends == list(range(ends[0], len(text) + 1))
    whole = judge(asked, answer(text, ended))
    assert {
        judge(asked, answer(text[:end], "stop")) for end in (ends[0], ends[len(ends) // 2])
    } == {whole}


@given(st.sampled_from(SPECS), TEXTS, TEXTS)
@settings(max_examples=MANY)
def test_text_without_the_form_behind_a_finished_answer_changes_nothing(
    spec: str, text: str, more: str
) -> None:
    asked = posed(spec)
    found = judge(asked, answer(text))
    form = asked.task.answer_line("")[:20]
    if found.kind != A or (form and form in more):
        return
    assert judge(asked, answer(f"{text}\n{more}")) == found or text.endswith("\r")


def test_the_right_line_is_right_for_every_task() -> None:
    for spec in (
        *SPECS,
        "retrieve-at-position",
        "copy:separator_every=3",
        "copy:uniform=true",
        "count-ones-bernoulli",
    ):
        asked = posed(spec, 9)
        found = judge(asked, answer(asked.line + "\n", "length"))
        assert (found.kind, found.correct) == (A, True)


def test_a_thought_that_the_prompt_has_opened() -> None:
    form = task("count-ones")
    reading = reader(form, form.items(12), "<user>count<assistant><think>\n")
    assert not reading.closed(f"{MATHS} 7\nNo, I count again.\n")
    assert reading.read(f"{MATHS} 7\nNo.\n</think>\n{MATHS} 12", "eos").number == 12


def test_a_line_is_written_once_something_stands_in_it() -> None:
    assert [line_written(text) for text in ("", "\n \n", "12", "\n12", "12\n", " \n 12 \r")] == [
        False
    ] * 4 + [True] * 2


@given(st.sampled_from(SPECS), TEXTS, st.sampled_from(["eos", "stop", "length"]))
@example("count-ones", f"{MATHS} 12 ones", "eos")
@example("count-ones", f"{MATHS} 012", "eos")
@example("count-ones", f"{MATHS} 9 ones", "eos")
@settings(max_examples=MANY)
def test_right_is_an_error_of_0_where_there_is_an_error_and_always_an_answer(
    spec: str, text: str, ended: str
) -> None:
    found = judge(posed(spec), answer(text, ended))
    if found.absolute_error is not None:
        assert found.number is not None
        assert found.absolute_error == abs(found.number - int(posed(spec).key))
        assert found.correct == (found.absolute_error == 0)
    if found.correct or found.absolute_error is not None:
        assert found.kind == A


OWN_QUESTION = "Please count the number of ones in the following sequence:111111111111"


@pytest.mark.parametrize(
    ("spec", "text", "correct", "content"),
    [
        *(
            ("count-ones", f"{MATHS}{blank}\n12", True, "12")
            for blank in "\u00a0\u3000\u2009\u2028"
        ),
        *(("count-ones", f"{MATHS}\n{signs}\n12", True, "12") for signs in (":", ">", "```")),
        ("count-ones", f"{MATHS}\n- 12", False, "12"),  # a minus or a bullet
        ("count-ones", f"{MATHS} 12\n{OWN_QUESTION}\n{MATHS} 7", True, "12"),
        ("copy", " 111111111111. I hope this helps!", False, "111111111111"),
    ],
)
def test_blanks_and_signs_around_an_answer_and_what_follows_it(
    spec: str, text: str, correct: bool, content: str
) -> None:
    found = judge(posed(spec), answer(text))
    assert (found.correct, found.content) == (correct, content)
