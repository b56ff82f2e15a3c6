"""Key-value retrieval, of which Section 5 of the paper speaks: does the answer depend on where in
the prompt it stands?

The task of Liu et al. 2023, "Lost in the Middle" (arXiv 2307.03172), section 3: a JSON object of
random pairs, one a line, and the request for the value of one of them. A seed fixes the pair that
is asked for and all the others; `position` moves only that pair: the prompts of a sweep over
positions hold the same records and the same question. No torch is needed here.
"""

from __future__ import annotations

import json
import random
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import ClassVar

from ostools.ground.arguments import typed_fields
from ostools.ground.errors import InputError
from ostools.ground.whole_numbers import whole_number
from ostools.tasks.appendix_c import WORDS
from ostools.tasks.base import Task

DRAWN_POSITION = "drawn"
PLACES = ("first", "middle", "last", DRAWN_POSITION)
RECORDS = ("uuid", "words")
"""Records that are generated; anything else is the path of a file."""

_BEFORE = (
    "Extract the value corresponding to the specified key in the JSON object below.\n\nJSON data:\n"
)
_RECORD = re.compile(r'"(?:[^"\\]|\\.)*": "(?:[^"\\]|\\.)*"')

_DIGITS = "0123456789"

Pair = tuple[str, str]


@typed_fields(InputError)
@dataclass(frozen=True)
class RetrieveTask(Task):
    """`length` key-value records, and the question for the value of the one at `position`.

    position: "first", "middle", "last", the record's index from 0, or a fraction of the way from
        the first to the last; or "drawn": an index as likely as any other, which the records
        themselves decide, so that each seed and length has its own.
    records: "uuid": random UUIDs as keys and values, as Liu et al. have them (some 75 tokens a
        record, where digits are tokens of their own); "words": a word as key and a digit as value,
        for small models, where values repeat beyond ten records; or the path of a file in the
        format of Liu et al. (JSON lines with `ordered_kv_records`, `key`, `value`), of which line
        `seed` (from 0) is taken: the pair that it asks for, among the first `length` - 1 others in
        their order.

    corrupt: with the value of the wanted record and the next other one exchanged (after the last
        comes the first).

    A mitigation can insert blank text between records; any other would leave no JSON object, and is
    refused. Raises `InputError` for a position or a file that is not of this form.
    """

    name: ClassVar[str] = "retrieve-at-position"
    position: int | float | str = "middle"
    records: str = "words"
    corrupt: bool = False

    def __post_init__(self) -> None:
        if self.corrupt and self.position == DRAWN_POSITION:
            raise InputError(
                "corrupt: expected a position that the records do not decide, found 'drawn': "
                "choose another"
            )
        is_index = isinstance(self.position, int) and self.position >= 0
        is_share = isinstance(self.position, float) and 0 <= self.position <= 1
        if not (is_index or is_share or self.position in PLACES):
            raise InputError(
                f"position: expected {', '.join(PLACES)}, an index from 0, or a fraction from 0.0 "
                f"to 1.0, found {self.position!r}"
            )
        if self.records not in RECORDS and not Path(self.records).is_file():
            raise InputError(
                f"records: expected {' or '.join(RECORDS)}, or a file, found {self.records!r}"
            )

    @property
    def random(self) -> bool:
        return True

    @property
    def example_task(self) -> RetrieveTask:
        return replace(self, corrupt=False)

    def corrupted(self) -> RetrieveTask:
        return replace(self, corrupt=not self.corrupt)

    @property
    def lead(self) -> str:
        """A blank: the prompt ends in "Corresponding value:"."""
        return " "

    def index(self, length: int) -> int:
        """The index, from 0, of the wanted one among `length` records."""
        if isinstance(self.position, int):
            if self.position >= length:
                raise InputError(
                    f"position {self.position}: expected an index below {length}, the number of "
                    "records"
                )
            return self.position
        share = {"first": 0.0, "middle": 0.5, "last": 1.0}.get(str(self.position), self.position)
        return int(float(share) * (length - 1) + 0.5)

    def items(self, length: int, seed: int = 0) -> tuple[str, ...]:
        """The `length` records, each as it stands in the JSON object, the wanted one at
        its place.
        """
        whole_number("length", length, 1)
        target_pair, other_pairs = self._drawn_pairs(length, seed)
        place = self._place([target_pair, *other_pairs])
        pairs = [*other_pairs[:place], target_pair, *other_pairs[place:]]
        if self.corrupt:
            _exchange_values(pairs, place)
        return tuple(
            ": ".join(json.dumps(word, ensure_ascii=False) for word in pair) for pair in pairs
        )

    def _drawn_pairs(self, length: int, seed: int) -> tuple[Pair, list[Pair]]:
        if self.records not in RECORDS:
            return _from_file(Path(self.records), length, seed)
        stream = random.Random(f"{self.name} {self.records} {seed}")
        if self.records == "words":
            first, *other_pairs = _words(stream, length)
        else:
            texts = [
                str(uuid.UUID(int=stream.getrandbits(128), version=4)) for _ in range(2 * length)
            ]
            first, *other_pairs = zip(texts[::2], texts[1::2], strict=True)
        return first, other_pairs

    def sequence(self, pieces: Sequence[str]) -> str:
        """The JSON object, one record a line; blank text inserted after a record stands after its
        line's end.
        """
        last = len(pieces) - 1
        for place, piece in enumerate(pieces):
            if not _is_record(piece) and (piece.strip() or place in (0, last)):
                raise InputError(
                    f"task {self.name!r}: {piece!r} among the records breaks the JSON object; only "
                    "blank text can stand between two of them, such as a line end (in bash: "
                    "--mitigation $'separator:text=\\n')"
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
        return (self._place(self.pairs(items)),)

    def answer_line(self, answer: str) -> str:
        """The value as the object writes it, in quotes."""
        return json.dumps(answer, ensure_ascii=False)

    def could_answer(self, line: str, pieces: Sequence[str]) -> bool:
        """It names a value of the records."""
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
        return pairs[self._place(pairs)]

    def _place(self, pairs: Sequence[Pair]) -> int:
        if self.position != DRAWN_POSITION:
            return self.index(len(pairs))
        # Of the records alone: whoever reads a prompt's pieces knows no seed, and the wanted one
        # must not yet have a place.
        return random.Random(f"{self.name} {DRAWN_POSITION} {sorted(pairs)}").randrange(len(pairs))


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


def _words(stream: random.Random, length: int) -> list[Pair]:
    """Single words as keys as long as there are enough of them, else pairs of words; digits as
    values, all different as long as there are enough of them: an answer then says which record was
    read.
    """
    names = (
        list(WORDS)
        if length <= len(WORDS)
        else [f"{first}-{last}" for first in WORDS for last in WORDS]
    )
    if length > len(names):
        raise InputError(
            f"records 'words': expected at most {len(names)} of them, found {length}; use 'uuid'"
        )
    keys = stream.sample(names, length)
    values = (
        stream.sample(_DIGITS, length)
        if length <= len(_DIGITS)
        else stream.choices(_DIGITS, k=length)
    )
    return list(zip(keys, values, strict=True))


def _from_file(path: Path, length: int, line: int) -> tuple[Pair, list[Pair]]:
    """The record that line `line` of the file asks for, and the first `length` - 1 others."""
    where = f"records: line {line} of {path}"
    try:
        with path.open(encoding="utf-8") as file:
            document = json.loads(next(islice(file, line, None)))
        target_pair = (document["key"], document["value"])
        pairs = [(key, value) for key, value in document["ordered_kv_records"]]
    except StopIteration:
        raise InputError(f"{where}: there is none; the seed chooses the line, from 0") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{where}: cannot be read: {type(error).__name__}: {error}") from error
    are_texts = all(isinstance(word, str) for pair in pairs for word in pair)
    if target_pair not in pairs or len(dict(pairs)) != len(pairs) or not are_texts:
        raise InputError(
            f"{where}: expected a JSON object with different ordered_kv_records of two texts each, "
            "and the key and value of one of them"
        )
    if length > len(pairs):
        raise InputError(f"{where} has {len(pairs)} of them, not {length}")
    return target_pair, [pair for pair in pairs if pair != target_pair][: length - 1]
