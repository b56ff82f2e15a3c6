"""Copying what stands to the left or to the right of a query, which the sequence holds once or
twice.

A causal model finds the right neighbour by induction; for the left one it has to keep what stood
before. The four cases (left or right, unique or not) are those of "Born a Transformer -- Always a
Transformer?" (arXiv 2505.21785); the words of the prompt are ours. No torch is needed here.
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
    unique: whether Q stands there once; else twice, with a letter between.
    occurrence: which Q is meant where there are two, "first" or "last".
    corrupt: with the two neighbours of the Q that is meant exchanged.
    """

    name: ClassVar[str] = "copy-beside"
    side: Literal["left", "right"] = "right"
    unique: bool = True
    occurrence: Literal["first", "last"] = "last"
    corrupt: bool = False

    def __post_init__(self) -> None:
        if self.unique and self.occurrence != "last":
            raise InputError(
                "occurrence: expected a Q that stands there twice, found unique=true: write "
                "unique=false"
            )

    @property
    def random(self) -> bool:
        return True

    @property
    def example_task(self) -> CopyBeside:
        return replace(self, corrupt=False)

    def corrupted(self) -> CopyBeside:
        return replace(self, corrupt=not self.corrupt)

    def items(self, length: int, seed: int = 0) -> tuple[str, ...]:
        """The letters; Q stands at neither end, and two of them not side by side."""
        queries = 1 if self.unique else 2
        whole_number("length", length, 2 * queries + 1, len(LETTERS) + queries)
        stream = random.Random(f"{self.name} {self.unique} {seed}")
        letters = stream.sample(LETTERS, length - queries)
        # A Q after each of these letters: never after the last one, and never two after one.
        for place in sorted(stream.sample(range(1, len(letters)), queries), reverse=True):
            letters.insert(place, QUERY)
        if self.corrupt:
            place = self._query(letters)
            letters[place - 1], letters[place + 1] = letters[place + 1], letters[place - 1]
        return tuple(letters)

    def parts(self, pieces: Sequence[str]) -> tuple[str, str, str]:
        query = QUERY if self.unique else f"the {self.occurrence} {QUERY}"
        after = f". Which letter stands directly to the {self.side} of {query} in this sequence? "
        request = "Please answer exactly as 'The answer to your question is: <ANSWER>'"
        return "Consider the following sequence of letters: ", " ".join(pieces), after + request

    def key(self, pieces: Sequence[str]) -> str:
        letters = _letters(pieces)
        return letters[self._neighbour(letters)]

    def carriers(self, items: Sequence[str]) -> tuple[int, ...]:
        """The index of the letter that is asked for."""
        return (self._neighbour(items),)

    def answer_line(self, answer: str) -> str:
        return _LINE.format(answer=answer)

    def _query(self, letters: Sequence[str]) -> int:
        """The place of the Q that is meant."""
        places = [place for place, letter in enumerate(letters) if letter == QUERY]
        return places[0 if self.occurrence == "first" else -1]

    def _neighbour(self, letters: Sequence[str]) -> int:
        return self._query(letters) + (-1 if self.side == "left" else 1)


def _letters(pieces: Sequence[str]) -> list[str]:
    """The letters of the sequence, without what a mitigation has put between them."""
    return [piece for piece in pieces if piece == QUERY or piece in LETTERS]
