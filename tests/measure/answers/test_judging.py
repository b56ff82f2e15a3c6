"""Answers of known texts, judged."""

from __future__ import annotations

import pytest
import torch

from ostools.measure.answers.answers import Answer
from ostools.measure.answers.judging import judge
from ostools.measure.posed import Posed
from ostools.models import Prompt
from ostools.tasks import Task, task

MATHS = "The final answer to your maths question is: "
COPY = "The answer to your question is: "


def posed(spec: str | Task, length: int = 12) -> Posed:
    form = task(spec)
    key = form.answer(length)
    prompt = Prompt("x", torch.tensor([1]), ("x",), False)
    return Posed(form, length, 0, "x", prompt, form.items(length), key, form.answer_line(key), False, False)


def answer(text: str, ended: str = "eos") -> Answer:
    return Answer((1,), text, ended)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("text", "ended", "expected"),  # correct, parsable, number, absolute error
    [
        ("\n" + MATHS + "12", "eos", (True, True, 12, 0)),
        (MATHS + "12", "stop", (True, True, 12, 0)),
        (MATHS + "10", "eos", (False, True, 10, 2)),
        ("I count 12", "eos", (False, True, 12, 0)),
        (MATHS + "many", "eos", (False, False, None, None)),
        (MATHS + "12", "length", (False, False, None, None)),
        ("", "eos", (False, False, None, None)),
    ],
)
def test_numbers(text: str, ended: str, expected: tuple) -> None:
    found = judge(posed("count-ones"), answer(text, ended))
    assert (found.correct, found.parsable, found.number, found.absolute_error) == expected


@pytest.mark.parametrize("mode", ["cot-zero-shot", "cot-few-shot"])
@pytest.mark.parametrize(
    ("text", "ended", "expected"),
    [
        # The paper's worked examples: reasoning and answer on one line.
        (f"We divide. (1 + 1) The answer is then 2 * 5 + 2 = 12 {MATHS}12", "eos", (True, True, 12, 0)),
        (f"Ten and two.\n\n{MATHS}12\n", "eos", (True, True, 12, 0)),
        (f"1 + 1 = 2 {MATHS}7", "eos", (False, True, 7, 5)),
        (f"{MATHS}12\nNo, wait: {MATHS}11", "eos", (False, True, 11, 1)),
        (f"{MATHS}12\nand then 3 and 4", "eos", (False, False, None, None)),
        ("It is 12", "eos", (False, True, 12, 0)),
        # Cut: what it would have come to is not known, whatever the last line says.
        (f"We divide. {MATHS}12", "length", (False, False, None, None)),
        (f"{MATHS}12\n1 + 1 + 1 is three", "length", (False, False, None, None)),
    ],
)
def test_reasoning(mode: str, text: str, ended: str, expected: tuple) -> None:
    found = judge(posed(f"count-ones:mode={mode}"), answer(text, ended))
    assert (found.correct, found.parsable, found.number, found.absolute_error) == expected
    assert found.line in text


@pytest.mark.parametrize(
    ("text", "ended", "expected"),  # correct, parsable, number
    [
        (COPY + "0", "eos", (True, True, 0)),
        (COPY + "1", "eos", (False, True, 1)),
        (COPY + "zero", "eos", (False, True, None)),
        (COPY, "eos", (False, False, None)),
        ("0", "eos", (False, False, None)),
        (COPY + "0", "length", (False, False, None)),
    ],
)
def test_a_form_of_words(text: str, ended: str, expected: tuple) -> None:
    found = judge(posed("copy-last"), answer(text, ended))
    assert (found.correct, found.parsable, found.number) == expected
    assert found.absolute_error is None


@pytest.mark.parametrize(
    ("form", "ended", "expected"),  # correct, parsable
    [
        ('"{}"', "eos", (True, True)),
        (' "{}"', "stop", (True, True)),
        ('"none of them"', "eos", (False, True)),
        ("{}", "eos", (False, False)),
        ('"{}', "eos", (False, False)),
        ('""', "eos", (False, False)),
        ('"{}"', "length", (False, False)),
    ],
)
@pytest.mark.parametrize("records", ["words", "uuid"])
def test_a_value_in_quotes(records: str, form: str, ended: str, expected: tuple) -> None:
    asked = posed(f"retrieve-at-position:records={records}", 5)
    found = judge(asked, answer(form.format(asked.key), ended))
    assert (found.correct, found.parsable) == expected


def test_a_bare_answer_is_parsable_where_there_is_one() -> None:
    copied = judge(posed("copy", 30), answer("\n" + task("copy").answer(30)))
    assert (copied.correct, copied.parsable, copied.number) == (True, True, None)
    assert not judge(posed("copy", 30), answer(" \n")).parsable
