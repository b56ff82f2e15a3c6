"""Copying what stands to the left or to the right of a query, which the sequence holds once.

A causal model finds the right neighbour by induction; for the left one it has to keep what stood
before. The two cases are of "Born a Transformer -- Always a Transformer?" (arXiv 2505.21785); the
words of the prompt are ours. No torch is needed here.
"""

from __future__ import annotations

import random
import string
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from ostools.ground.arguments import typed_fields
from ostools.ground.errors import InputError
from ostools.ground.whole_numbers import whole_number
from ostools.tasks.base import Task

QUERY = "Q"
LETTERS = tuple(letter for letter in string.ascii_uppercase if letter != QUERY)
_LINE = "The answer to your question is: {answer}"


@typed_fields(InputError)
@dataclass(frozen=True)
class CopyBeside(Task):
    """The letter beside Q in a sequence of `length` letters, each of the others once.

    side: "left" or "right" of Q.
    corrupt: with the two neighbours of Q exchanged.
    """

    name: ClassVar[str] = "copy-beside"
    side: Literal["left", "right"] = "right"
    corrupt: bool = False

    @property
    def random(self) -> bool:
        return True

    @property
    def example_task(self) -> CopyBeside:
        return replace(self, corrupt=False)

    def corrupted(self) -> CopyBeside:
        return replace(self, corrupt=not self.corrupt)

    def items(self, length: int, seed: int = 0) -> tuple[str, ...]:
        """The letters; Q stands at neither end."""
        whole_number("length", length, 3, len(LETTERS) + 1)
        stream = random.Random(f"{self.name} True {seed}")
        letters = stream.sample(LETTERS, length - 1)
        (place,) = stream.sample(range(1, len(letters)), 1)
        letters.insert(place, QUERY)
        if self.corrupt:
            letters[place - 1], letters[place + 1] = letters[place + 1], letters[place - 1]
        return tuple(letters)

    def parts(self, pieces: Sequence[str]) -> tuple[str, str, str]:
        after = f". Which letter stands directly to the {self.side} of {QUERY} in this sequence? "
        request = "Please answer exactly as 'The answer to your question is: <ANSWER>'"
        return "Consider the following sequence of letters: ", " ".join(pieces), after + request

    def key(self, pieces: Sequence[str]) -> str:
        # Without what a mitigation has put between them.
        letters = [piece for piece in pieces if piece == QUERY or piece in LETTERS]
        return letters[self._neighbour(letters)]

    def carriers(self, items: Sequence[str]) -> tuple[int, ...]:
        """The index of the letter that is asked for."""
        return (self._neighbour(items),)

    def answer_line(self, answer: str) -> str:
        return _LINE.format(answer=answer)

    def _neighbour(self, letters: Sequence[str]) -> int:
        return letters.index(QUERY) + (-1 if self.side == "left" else 1)
