"""How many r are in it? Letters in the place of the paper's digits."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ostools.ground.errors import InputError
from ostools.tasks import Task

ALPHABET = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class CountLetter(Task):
    """Count one letter among `length` letters, half of which are that one.

    Raises `InputError` for what is not one lower-case letter, and for a length < 1.
    """

    name: ClassVar[str] = "count-letter"
    letter: str = "r"

    def __post_init__(self) -> None:
        if len(self.letter) != 1 or self.letter not in ALPHABET:
            raise InputError(f"count-letter: expected one letter of a-z, found {self.letter!r}")

    @property
    def random(self) -> bool:
        return True

    @property
    def numeric(self) -> bool:
        return True

    def items(self, length: int, seed: int = 0) -> tuple[str, ...]:
        if length < 1:
            raise InputError(f"count-letter: expected at least 1 letter, found {length}")
        draw = random.Random(f"{length} {seed}")
        return tuple(
            self.letter if draw.random() < 0.5 else draw.choice(ALPHABET) for _ in range(length)
        )

    def parts(self, pieces: Sequence[str]) -> tuple[str, str, str]:
        before = f"Please count the number of times the letter '{self.letter}' appears in the following sequence: '"
        return (
            before,
            "".join(pieces),
            "'. Please give the answer on the final line exactly as 'The answer is: xxxx'.",
        )

    def key(self, pieces: Sequence[str]) -> str:
        return str(sum(piece == self.letter for piece in pieces))

    def carriers(self, items: Sequence[str]) -> tuple[int, ...]:
        return tuple(index for index, item in enumerate(items) if item == self.letter)

    def answer_line(self, answer: str) -> str:
        return f"The answer is: {answer}"
