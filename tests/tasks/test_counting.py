"""A prompt with its answer line begun: up to the answer's first token, whatever a tokenizer makes of the blank before it."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from ostools.ground.errors import InputError
from ostools.tasks.appendix_c import AppendixTask
from ostools.tasks.counting import COUNTING, PrefilledPairs


class Cutter:
    """A tokenizer by a regular expression: one id for every distinct piece, a BOS before them."""

    def __init__(self, pieces: str) -> None:
        self.pieces = re.compile(pieces, re.DOTALL)
        self.known = ["<bos>"]

    def ids(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        return [(0, *map(self._id, self.pieces.findall(text))) for text in texts]

    def _id(self, piece: str) -> int:
        if piece not in self.known:
            self.known.append(piece)
        return self.known.index(piece)

    def token(self, index: int) -> str:
        return self.known[index]

    def text(self, ids: Sequence[int]) -> str:
        return "".join(self.known[index] for index in ids[1:])


LETTERS, GLUED, WHOLE = r".", r" \d|.", r" \d+|."


@pytest.mark.parametrize("name", COUNTING)
@pytest.mark.parametrize("pieces", [LETTERS, GLUED, WHOLE])
def test_the_line_is_begun_up_to_the_answers_first_token(name: str, pieces: str) -> None:
    cutter, form = Cutter(pieces), AppendixTask(name)
    found = PrefilledPairs(form).prompts(cutter, [1, 9, 12, 30], seed=3)
    for n, opened in found.items():
        assert opened.key == form.answer(n, 3)
        begun, answer = cutter.text(opened.ids), "".join(cutter.known[index] for index in opened.answer)
        assert begun + answer == form.prompt(n, 3) + "\n" + form.answer_line(opened.key)
        assert answer.strip() == opened.key
        blank = pieces != LETTERS and form.answer_line("").endswith(" ")
        assert answer.startswith(" ") == blank
    if pieces == WHOLE and name == "count-ones":
        assert len(found[12].answer) == 1
        assert found[12].answer != found[1].answer


def test_only_what_is_drawn_depends_on_the_seed() -> None:
    for name in COUNTING:
        task = PrefilledPairs(AppendixTask(name))
        found = [list(task.pairs(Cutter(LETTERS), [12], seed)) for seed in (1, 2)]
        assert task.random == (found[0] != found[1])
    assert PrefilledPairs(AppendixTask("count-ones-figure-5", uniform=True)).random


def test_refuses_a_task_whose_answer_is_no_count() -> None:
    with pytest.raises(InputError, match=r"unknown counting task 'copy-last'.*known are .*count-word"):
        PrefilledPairs(AppendixTask("copy-last"))


def test_refuses_a_tokenizer_that_cuts_the_line_by_its_answer() -> None:
    cutter = Cutter(r"is: 12|.")
    task = PrefilledPairs(AppendixTask("count-ones"))
    assert task.prompts(cutter, [11, 13])
    with pytest.raises(
        InputError, match="count-ones at length 12: expected the answer '12' to begin with a token of its own"
    ):
        task.prompts(cutter, [11, 12])
