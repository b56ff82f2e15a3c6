"""Tasks that look something up: key-value retrieval, of which Section 5 of the paper speaks (does
the answer depend on where in the prompt it stands?), and copying what stands beside a query.

The task of Liu et al. 2023, "Lost in the Middle" (arXiv 2307.03172), section 3: a JSON object of
random pairs, one a line, and the request for the value of one of them. A seed fixes the pair that
is asked for and all the others; `position` moves only that pair: the prompts of a sweep over
positions hold the same records and the same question.

Copying beside a query, which the sequence holds once: a causal model finds the right neighbour by
induction; for the left one it has to keep what stood before. The two cases are of "Born a
Transformer -- Always a Transformer?" (arXiv 2505.21785); the words of the prompt are ours. No torch
is needed here.
"""

import json
import random
import re
import string
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from ostools.ground import InputError, typed_fields, whole_number
from ostools.tasks.appendix_c import WORDS
from ostools.tasks.base import Task

Records = Literal["words", "uuid"]
_BEFORE = (
    "Extract the value corresponding to the specified key in the JSON object below.\n\nJSON data:\n"
)
_RECORD = re.compile(r'"(?:[^"\\]|\\.)*": "(?:[^"\\]|\\.)*"')

_DIGITS = "0123456789"

QUERY = "Q"
LETTERS = tuple(letter for letter in string.ascii_uppercase if letter != QUERY)
_LINE = "The answer to your question is: {answer}"

Pair = tuple[str, str]


@typed_fields(InputError)
@dataclass(frozen=True)
class RetrieveTask(Task):
    """`length` key-value records, and the question for the value of the one at `position`.

    position: "first", "middle", "last", or the record's index from 0.
    records: "uuid": random UUIDs as keys and values, as Liu et al. have them (some 75 tokens a
        record, where digits are tokens of their own); "words": a word as key and a digit as value,
        for small models, where values repeat beyond ten records.
    corrupt: with the value of the wanted record and the next other one exchanged (after the last
        comes the first).

    A mitigation can insert blank text between records; any other would leave no JSON object, and is
    refused. Raises `InputError` for a position that is not of this form.
    """

    name: ClassVar[str] = "retrieve-at-position"
    position: int | Literal["first", "middle", "last"] = "middle"
    records: Records = "words"
    corrupt: bool = False

    @property
    def random(self) -> bool:
        return True

    @property
    def lead(self) -> str:
        """A blank: the prompt ends in "Corresponding value:"."""
        return " "

    def index(self, length: int) -> int:
        """The index, from 0, of the wanted one among `length` records."""
        if isinstance(self.position, int):
            return whole_number("position", self.position, 0, length - 1)
        return {"first": 0, "middle": length // 2, "last": length - 1}[self.position]

    def items(self, length: int, seed: int = 0) -> tuple[str, ...]:
        """The `length` records, each as it stands in the JSON object, the wanted one at
        its place.
        """
        whole_number("length", length, 1)
        stream, place = random.Random(f"{self.name} {self.records} {seed}"), self.index(length)
        pairs = _words(stream, length) if self.records == "words" else _uuids(stream, length)
        pairs.insert(place, pairs.pop(0))
        if self.corrupt:
            _exchange_values(pairs, place)
        return tuple(
            ": ".join(json.dumps(word, ensure_ascii=False) for word in pair) for pair in pairs
        )

    def sequence(self, pieces: Sequence[str]) -> str:
        """The JSON object, one record a line; blank text inserted after a record stands after its
        line's end.
        """
        last = len(pieces) - 1
        for place, piece in enumerate(pieces):
            if not _is_record(piece) and (piece.strip() or place in (0, last)):
                raise InputError(
                    f"task {self.name!r}: {piece!r} among the records breaks the JSON object; only "
                    "blank text can stand between two of them, such as a line end"
                )
        return "".join(
            ("{" if place == 0 else " ") + piece + ("}" if place == last else ",\n")
            if _is_record(piece)
            else piece
            for place, piece in enumerate(pieces)
        )

    def parts(self, pieces: Sequence[str]) -> tuple[str, str, str]:
        """Liu et al.'s words before the object, the object, and the question for the wanted key."""
        key = json.dumps(self._target_pair(pieces)[0], ensure_ascii=False)
        return _BEFORE, self.sequence(pieces), f"\n\nKey: {key}\nCorresponding value:"

    def key(self, pieces: Sequence[str]) -> str:
        """The value of the wanted record."""
        return self._target_pair(pieces)[1]

    def carriers(self, items: Sequence[str]) -> tuple[int, ...]:
        """The index of the wanted record."""
        return (self.index(len(items)),)

    def answer_line(self, answer: str) -> str:
        """The value as the object writes it, in quotes."""
        return json.dumps(answer, ensure_ascii=False)

    def could_answer(self, line: str, pieces: Sequence[str]) -> bool:
        """Whether it names a value of the records."""
        return self.named_answer(line, pieces) is not None

    def named_answer(self, line: str, pieces: Sequence[str]) -> str | None:
        """The value that stands first in the line, as a word of its own.

        (Liu et al. ask whether the wanted one stands anywhere: a model that lists many would always
        be right.)
        """
        values = {value for _, value in self.pairs(pieces)}
        words = "|".join(sorted(map(re.escape, values), key=len, reverse=True))
        match = re.search(rf"(?<![\w-])(?:{words})(?![\w-])", line)
        return None if match is None else match[0]

    def pairs(self, pieces: Sequence[str]) -> list[Pair]:
        """The records, key and value, in the order of the prompt."""
        return [
            pair
            for piece in pieces
            if _is_record(piece)
            for pair in json.loads(f"{{{piece}}}").items()
        ]

    def _target_pair(self, pieces: Sequence[str]) -> Pair:
        pairs = self.pairs(pieces)
        return pairs[self.index(len(pairs))]


def _exchange_values(pairs: list[Pair], place: int) -> None:
    """Exchange the value of the pair at `place` with the next one that differs. Raises `InputError`
    where all are alike.
    """
    for step in range(1, len(pairs)):
        partner = (place + step) % len(pairs)
        (key, value), (partner_key, partner_value) = pairs[place], pairs[partner]
        if value != partner_value:
            pairs[place], pairs[partner] = (key, partner_value), (partner_key, value)
            return
    raise InputError(
        "corrupt: expected records of two values at least, found one value: ask at a greater length"
    )


def _is_record(piece: str) -> bool:
    return _RECORD.fullmatch(piece) is not None


def _uuids(stream: random.Random, length: int) -> list[Pair]:
    texts = [str(uuid.UUID(int=stream.getrandbits(128), version=4)) for _ in range(2 * length)]
    return list(zip(texts[::2], texts[1::2], strict=True))


def _words(stream: random.Random, length: int) -> list[Pair]:
    """Single words as keys as long as there are enough of them, else pairs of words; digits as
    values, all different as long as there are enough of them: an answer then says which record was
    read.
    """
    names = list(WORDS)
    if length > len(names):
        names = [f"{first}-{last}" for first in WORDS for last in WORDS]
    whole_number("length of 'words'", length, 1, len(names))
    keys = stream.sample(names, length)
    draw = stream.sample if length <= len(_DIGITS) else stream.choices
    return list(zip(keys, draw(_DIGITS, k=length), strict=True))


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
