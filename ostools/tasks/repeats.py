"""Prompts other than ones that end in one token again and again: letters, the last token of any
text; and token ids.

Theorem 4.2 speaks of every such sequence; Figure 5 shows ones. Length n is the number of copies at
the end.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, ClassVar, TypeAlias

from ostools.ground import InputError, short_repr, typed_fields
from ostools.tasks.pairs import (
    CollapseTask,
    Encoder,
    ItemsAs,
    Pair,
    ids_of_items,
    ids_of_text,
    repeats_last,
    theorem_pair,
)


@typed_fields(InputError)
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
                f"{self.name}: expected something to repeat, and a text before what is put in by "
                f"its id, found prompt={self.prompt!r}, item={self.item!r}, items={self.items!r}"
            )

    @property
    def example(self) -> str:
        return self.prompt + (self.item * 6 if self.item is not None else "")

    def pairs(self, encoder: Encoder, lengths: Sequence[int], seed: int = 0) -> Iterator[Pair]:
        if self.item is None:
            (text_ids,) = encoder.ids([self.prompt])
            yield from RepeatedIds(text_ids).pairs(encoder, lengths)
            return
        pieces = {n: [self.item] * n for n in lengths}
        if self.items == "text":
            ids = ids_of_text(encoder, self.name, self.prompt, pieces, lengths)
        else:
            ids = ids_of_items(encoder, self.prompt, pieces, [self.item])
        yield from (theorem_pair(n, ids[n]) for n in lengths)


Ids: TypeAlias = Any
"""A row of token ids, or a `Prompt`, of which they are taken."""


class TaskOfIds(CollapseTask):
    """Pairs that are given as token ids. Nothing is added to them, and a tokenizer is
    not needed.
    """

    items: ClassVar[ItemsAs] = "ids"

    @abstractmethod
    def provenance_columns(self) -> dict[str, object]:
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

    def provenance_columns(self) -> dict[str, object]:
        return {"before": list(_row(self.ids)), "item": self.item}

    def pairs(self, encoder: Encoder, lengths: Sequence[int], seed: int = 0) -> Iterator[Pair]:
        ids = _row(self.ids)
        before, item = (ids[:-1], ids[-1]) if self.item is None else (ids, self.item)
        yield from (theorem_pair(n, (*before, *(item,) * n)) for n in lengths)


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
        for length, (first, second) in self.at.items():
            ends = _row(first)[-1:], _row(second)[-1:]
            if ends[0] != ends[1] or not ends[0]:
                raise InputError(
                    f"{self.name} at length {length}: expected two rows of ids that end in the "
                    f"same one, found {ends[0]} and {ends[1]} at their ends: their distance would "
                    "be that of the two tokens"
                )

    def provenance_columns(self) -> dict[str, object]:
        return {"at": {n: [list(_row(ids)) for ids in pair] for n, pair in self.at.items()}}

    def pairs(self, encoder: Encoder, lengths: Sequence[int], seed: int = 0) -> Iterator[Pair]:
        for n in lengths:
            if n not in self.at:
                raise InputError(
                    f"{self.name}: expected a length with a pair, one of {[*self.at][:8]}, found "
                    f"{n}"
                )
            ids, extended = map(_row, self.at[n])
            yield Pair("theorem" if repeats_last(ids, extended) else "task", n, ids, extended)


def _row(ids: Ids) -> tuple[int, ...]:
    """Token ids of a row, or of a `Prompt`, as whole numbers."""
    try:
        row = tuple(map(index, getattr(ids, "ids", ids)))
    except TypeError:  # no row, or numbers that are not whole
        row = (-1,)
    if min(row, default=0) < 0:
        raise InputError(
            f"expected a row of token ids (whole numbers from 0), found {short_repr(ids)}"
        )
    return row


def letters(items: ItemsAs = "text") -> RepeatTask:
    """A question and the letter a, again and again."""
    return RepeatTask("letters", "How many letters are in the following sequence?", "a", items)
