"""Answers of known texts, judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ostools.measure.answers.answers import Answer
from ostools.measure.answers.judging import judge
from ostools.measure.task_prompt import TaskPrompt
from ostools.models import Prompt
from ostools.tasks import Task, task

COPY = "The answer to your question is: "


def posed(spec: str | Task, length: int = 12) -> TaskPrompt:
    form = task(spec)
    key = form.answer(length)
    prompt = Prompt("x", torch.tensor([1]), ("x",), False)
    return TaskPrompt(form, length, 0, "x", prompt, form.items(length), key, form.answer_line(key), False, False)


def answer(text: str, ended: str = "eos") -> Answer:
    return Answer((1,), text, ended)  # pyright: ignore[reportArgumentType]


def test_a_copy_is_compared_as_it_is_written() -> None:
    assert [judge(posed("copy-last"), answer(COPY + said)).correct for said in ("0", "00", "zero")] == [
        True,
        False,
        False,
    ]
    commas = posed("copy:separator_every=3", 6)
    assert [judge(commas, answer(said)).correct for said in ("111,111", "111111", "111, 111")] == [True, False, False]


@dataclass(frozen=True)
class Halves(Task):
    """A third party's numbers that are not whole."""

    name: str = "halves"

    @property
    def numeric(self) -> bool:
        return True

    def items(self, length: int, seed: int = 0) -> tuple[str, ...]:
        return ("1",) * length

    def parts(self, pieces: Sequence[str]) -> tuple[str, str, str]:
        return "Half of ", "".join(pieces), "?"

    def key(self, pieces: Sequence[str]) -> str:
        return str(len(pieces) / 2)

    def carriers(self, items: Sequence[str]) -> tuple[int, ...]:
        return (0,)


def test_exactly_the_right_line_is_right_whatever_the_answer_looks_like() -> None:
    asked = posed(Halves(), 3)
    found = judge(asked, answer("\n1.5"))
    assert (found.kind, found.correct, found.number, found.absolute_error) == ("answered", True, None, None)
    assert judge(asked, answer("1.5", "length")).kind == "cut off"
    assert judge(asked, answer("2.5")).kind == "something else"
