"""Mitigations that only rewrite the prompt (Section 4 and Appendix C.1 of the paper)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mitigations.base import Mitigation, MitigationError


@dataclass(frozen=True)
class Separator(Mitigation):
    """`text` after every `every`-th item, none at the end: the paper's comma after every third digit.

    Raises `MitigationError` for every < 1, and for text that is empty or contains a digit or a letter: it could be read as
    an item.
    """

    every: int = 3
    text: str = ","

    def __post_init__(self) -> None:
        if self.every < 1:
            raise MitigationError(f"Separator: expected every >= 1, found {self.every}")
        if not self.text or any(character.isalnum() for character in self.text):
            raise MitigationError(f"Separator: expected text without letters and digits, found {self.text!r}")

    def sequence(self, items: Sequence[str]) -> Sequence[str]:
        pieces: list[str] = []
        for index, item in enumerate(items):
            if index and index % self.every == 0:
                pieces.append(self.text)
            pieces.append(item)
        return pieces


@dataclass(frozen=True)
class Hint(Mitigation):
    """The paper's hint, one space after the prompt. Raises `MitigationError` for an empty text."""

    text: str = "*Hint* It's not necessarily a 1, check carefully"

    def __post_init__(self) -> None:
        if not self.text.strip():
            raise MitigationError("Hint: expected a text, found none")

    def prompt(self, text: str) -> str:
        return f"{text} {self.text}"
