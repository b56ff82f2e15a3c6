"""Prompts other than ones that end in one token again and again: letters, words, the last token of
any text; and token ids.

Theorem 4.2 speaks of every such sequence; Figure 5 shows ones. Length n is the number of copies at
the end.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias, runtime_checkable

from ostools.ground.errors import InputError, short_repr
from ostools.tasks.base import typed_fields
from ostools.tasks.pairs import (
    CollapseTask,
    Encoder,
    ItemsAs,
    Pair,
    item_ids,
    repeats_last,
    require_no_merge,
    theorem_pair,
)

TEXT = "The farmer walked to the old mill by the river, and the wind turned the wheel"


@typed_fields
@dataclass(frozen=True)
class RepeatTask(CollapseTask):
    """A text followed by `item` n times: v_n. With one more it is v*.

    item: what is repeated, such as "a" or " and" (the space belongs to it). None: the last token of
        the text itself, by its id, so that v_1 is the text as it stands.

    Raises `InputError` for an empty item, and for an empty text if its own last token is meant or
    if items are put in by their ids (an item's one token is found after a text).
    """

    name: str
    prompt: str
    item: str | None = None
    items: ItemsAs = "text"

    def __post_init__(self) -> None:
        before_item = self.item is None or self.items == "ids"
        if self.item == "" or (before_item and not self.prompt):
            raise InputError(
                f"{self.name}: expected something to repeat, and a text before what is put in by its id, found "
                f"prompt={self.prompt!r}, item={self.item!r}, items={self.items!r}"
            )

    @property
    def example(self) -> str:
        return self.prompt + (self.item * 6 if self.item is not None else "")

    def pairs(self, encoder: Encoder, lengths: Sequence[int], seed: int = 0) -> Iterator[Pair]:
        if self.item is not None and self.items == "text":
            # Each prompt tokenized whole; with the item once more, the text has to be tokenized
            # into v*.
            counts = sorted({*lengths, *(n + 1 for n in lengths)})
            prompts = encoder.ids([self.prompt + self.item * n for n in counts])
            ids = dict(zip(counts, prompts, strict=True))
            for n in lengths:
                require_no_merge(encoder, self.name, n, self.item, ids[n], ids[n + 1])
                yield theorem_pair(n, ids[n])
            return
        (before,) = encoder.ids([self.prompt])
        if self.item is None:
            before, token_id = before[:-1], before[-1]
        else:
            token_id = item_ids(encoder, self.prompt, [self.item])[self.item]
        yield from (theorem_pair(n, (*before, *(token_id,) * n)) for n in lengths)


@runtime_checkable
class HasIds(Protocol):
    """A `Prompt`, of which the token ids are taken."""

    ids: Any


Ids: TypeAlias = Iterable[int] | HasIds


class TaskOfIds(CollapseTask):
    """Pairs that are given as token ids. Nothing is added to them, and a tokenizer is not needed."""

    items: ClassVar[ItemsAs] = "ids"

    @abstractmethod
    def provenance_columns(self) -> dict[str, Any]:
        """For a provenance: the ids."""


@dataclass(frozen=True)
class RepeatedIds(TaskOfIds):
    """Token ids followed by the id `item` n times: v_n. With one more it is v*.

    ids: what stands before; it may be empty if there is an item. A `Prompt` is taken for its ids.
        item: None for the last of the ids, so that v_1 is the ids as they stand.

    Raises `InputError` for ids that are not whole numbers, and if there is nothing to repeat.
    """

    ids: Ids
    item: int | None = None
    name: str = "ids"

    def __post_init__(self) -> None:
        row = _row(self.ids)
        object.__setattr__(self, "ids", row)
        if self.item is not None:
            _row([self.item])
        elif not row:
            raise InputError(
                f"{self.name}: expected something to repeat, found no ids: give some, or item="
            )

    @property
    def example(self) -> str:
        return " ".join(map(str, self._ids(6)))

    def provenance_columns(self) -> dict[str, Any]:
        return {"before": list(_row(self.ids)), "item": self.item}

    def pairs(self, encoder: Encoder, lengths: Sequence[int], seed: int = 0) -> Iterator[Pair]:
        yield from (theorem_pair(n, self._ids(n)) for n in lengths)

    def _ids(self, length: int) -> tuple[int, ...]:
        ids = _row(self.ids)
        before, item = (ids[:-1], ids[-1]) if self.item is None else (ids, self.item)
        return (*before, *(item,) * length)


@dataclass(frozen=True)
class PairsOfIds(TaskOfIds):
    """Prompts that are compared two by two: for every length, the token ids of the one and of the
    other.

    at: length (how many items, for tables and charts) -> two rows of ids, or two `Prompt`s. Theorem
        4.2 speaks of a pair whose second row is the first with its last id once more ("theorem"),
        and of no other pair ("task").

    Raises `InputError` for what is not a pair of rows of whole numbers, for two rows that end in
    different ids (their distance would be that of the two tokens), and for a length without a pair.
    """

    at: Mapping[int, tuple[Ids, Ids]]
    name: str = "pairs"

    def __post_init__(self) -> None:
        if not isinstance(self.at, Mapping) or not self.at:
            raise InputError(
                f"{self.name}: expected pairs by their length, such as {{3: (ids, ids)}}, found {self.at!r:.60}"
            )
        object.__setattr__(
            self, "at", {n: self._pair(n, id_rows) for n, id_rows in self.at.items()}
        )

    def _pair(self, length: int, id_rows: Any) -> tuple[tuple[int, ...], ...]:
        if not isinstance(id_rows, tuple | list) or len(id_rows) != 2:
            raise InputError(
                f"{self.name} at length {length}: expected two rows of ids, found {id_rows!r:.60}"
            )
        first, second = map(_row, id_rows)
        if not first or not second or first[-1] != second[-1]:
            raise InputError(
                f"{self.name} at length {length}: expected two rows of ids that end in the same one, found {first[-3:]} and "
                f"{second[-3:]} at their ends: their distance would be that of the two tokens"
            )
        return first, second

    def provenance_columns(self) -> dict[str, Any]:
        return {"at": {n: [list(_row(ids)) for ids in pair] for n, pair in self.at.items()}}

    def pairs(self, encoder: Encoder, lengths: Sequence[int], seed: int = 0) -> Iterator[Pair]:
        for n in lengths:
            if n not in self.at:
                known_lengths = ", ".join(map(str, sorted(self.at)[:8]))
                raise InputError(
                    f"{self.name}: expected a length with a pair ({known_lengths}), found {n}"
                )
            ids, extended = map(_row, self.at[n])
            yield Pair("theorem" if repeats_last(ids, extended) else "task", n, ids, extended)


def _row(ids: Any) -> tuple[int, ...]:
    ids = getattr(ids, "ids", ids)
    try:
        row = tuple(token_id.item() if hasattr(token_id, "item") else token_id for token_id in ids)
    except (TypeError, ValueError, RuntimeError):  # no row, or rows of several ids
        row = (-1,)
    if not all(type(item) is int and item >= 0 for item in row):
        raise InputError(
            f"expected a row of token ids (whole numbers from 0), found {short_repr(ids)}"
        )
    return row


def letters(items: ItemsAs = "text") -> RepeatTask:
    """A question and the letter a, again and again."""
    return RepeatTask("letters", "How many letters are in the following sequence?", "a", items)


def words(items: ItemsAs = "text") -> RepeatTask:
    """A question and the word " and", again and again."""
    return RepeatTask("words", "How many words are in the following sentence?", " and", items)


def last_token(prompt: str = TEXT) -> RepeatTask:
    """Any text, its last token repeated (by its id: the token's text could become another token
    beside a copy).
    """
    return RepeatTask("text", prompt, None, "ids")


REPEATS = {"letters": letters, "words": words}
