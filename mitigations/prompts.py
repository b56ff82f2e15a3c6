"""Mitigations that only rewrite the prompt: the paper's commas (Section 4), hint and interleaving
(Section 3.1), and others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from ostools.ground import typed_fields
from ostools.mitigations.base import Bar, Mitigation, MitigationError, require_whole


@typed_fields(MitigationError)
@dataclass(frozen=True)
class Separator(Mitigation):
    """`text` after every `every`-th item, but not at the end: the paper's comma after every third
    digit.

    The paper's claim is that it "helps to keep the representations well-separated" (Section 4). The
    claim is not about answers.

    Raises `MitigationError` for every < 1, and for text that is empty or contains a digit or a
    letter, because these could be read as an item.
    """

    every: int = 3
    text: str = ","

    def __post_init__(self) -> None:
        require_whole(self, "every", 1)
        _require_no_item(self, is_empty=not self.text)

    def sequence(self, items: Sequence[str]) -> Sequence[str]:
        return _with_every(self.every, self.text, items)


@typed_fields(MitigationError)
@dataclass(frozen=True)
class Partition(Mitigation):
    """Parts of `size` items with `text` between them, and a request to count each part and then to
    add the counts.

    Counting in parts is the "System-2" strategy of arXiv 2601.02989. The request is in our words,
    one space after the prompt. It gives the form of a part's line: Qwen2.5-Coder-1.5B-Instruct
    passed over two requests without one. The model writes the counts before the final line: an
    answer gets more tokens, and what stands in the final line is read.

    Raises `MitigationError` for size < 1, for text that is blank or contains a digit or a letter,
    and for separators between the items, which would count as items of a part. Only tasks take it
    whose answer is the sum of the answers of the parts and that ask for a final line: elsewhere the
    first count would be read as the answer.
    """

    size: int = 5
    text: str = " | "

    counts_parts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_whole(self, "size", 1)
        _require_no_item(self, is_empty=not self.text.strip())

    def sequence(self, items: Sequence[str]) -> Sequence[str]:
        items = list(items)
        for item in items:
            if not any(character.isalnum() for character in item):
                raise MitigationError(
                    f"Partition: expected items, found the separator {item!r}: put partition first"
                )
        return _with_every(self.size, Bar(self.text), items)

    def prompt(self, text: str) -> str:
        return (
            f"{text} The sequence is in parts, with {self.text.strip()} between two parts. First "
            "write one line for each part, 'Part 1: <count>' and so on, then add these counts for "
            "the final line."
        )


@dataclass(frozen=True)
class Interleave(Mitigation):
    """Zeros between ones, and ones between zeros, so that no digit follows itself: 1110 becomes
    101010.

    These are the paper's interleaved sequences, made from the task's own: n - 1 ones and a zero
    become 2 (n - 1) digits. `insert` refuses it if the answer would change (in copying the whole
    number).

    Raises `MitigationError` for items other than 0 and 1.
    """

    def sequence(self, items: Sequence[str]) -> Sequence[str]:
        pieces = list(items[:1])
        for before, item in pairwise(items):
            if before == item:
                pieces.append(self._partner(item))
            pieces.append(item)
        return pieces

    def _partner(self, item: str) -> str:
        if item not in ("0", "1"):
            raise MitigationError(
                f"Interleave: expected a sequence of zeros and ones, found {item!r}"
            )
        return "1" if item == "0" else "0"


@typed_fields(MitigationError)
@dataclass(frozen=True)
class Hint(Mitigation):
    """The paper's hint (Section 3.1), or another text. The paper does not print where it stands.
    Here it is one space after the prompt.

    Raises `MitigationError` for an empty text.
    """

    text: str = "*Hint* It's not necessarily a 1, check carefully"

    def __post_init__(self) -> None:
        if not self.text.strip():
            raise MitigationError("Hint: expected a text, found none")

    def prompt(self, text: str) -> str:
        return f"{text} {self.text}"


@typed_fields(MitigationError)
@dataclass(frozen=True)
class RepeatPrompt(Mitigation):
    """The whole prompt, `times` times, with `between` between the copies.

    Every token of the last copy can see every token of the first copy, also those that come after
    it in the prompt.

    Raises `MitigationError` for times < 2.
    """

    times: int = 2
    between: str = "\n"

    def __post_init__(self) -> None:
        require_whole(self, "times", 2)

    def prompt(self, text: str) -> str:
        return self.between.join([text] * self.times)


def _with_every(count: int, text: str, items: Sequence[str]) -> list[str]:
    """The items, with the text after every `count` of them, but not at the end."""
    pieces: list[str] = []
    for index, item in enumerate(items):
        pieces += [text, item] if index and index % count == 0 else [item]
    return pieces


def _require_no_item(mitigation: Separator | Partition, is_empty: bool) -> None:
    """Refuse text between items that could be read as one, or is empty."""
    if is_empty or any(character.isalnum() for character in mitigation.text):
        raise MitigationError(
            f"{type(mitigation).__name__}: expected text without letters and digits, found "
            f"{mitigation.text!r}"
        )
