"""Prompts other than ones that end in one token again and again: letters, words, the last token of any text.

Theorem 4.2 speaks of every such sequence; Figure 5 shows ones. Length n is the number of copies at the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ostools.ground.errors import InputError, unknown_name
from ostools.tasks.pairs import CollapseTask, Encoder, ItemsAs, Pair, item_ids, require_no_merge, theorem_pair

TEXT = "The farmer walked to the old mill by the river, and the wind turned the wheel"


@dataclass(frozen=True)
class RepeatTask(CollapseTask):
    """A text, and behind it `item` n times: v_n; with one more, v*.

    item: what is repeated, such as "a" or " and" (the space belongs to it); None: the last token of the text itself, by its
        id, so that v_1 is the text as it stands.

    Raises `InputError` for an empty text where its own last token is meant or items are put in by their ids (an item's one
    token is found behind a text), and for an empty item.
    """

    name: str
    prompt: str
    item: str | None = None
    items: ItemsAs = "text"

    def __post_init__(self) -> None:
        if self.items not in ("text", "ids"):
            raise unknown_name("items", self.items, ("text", "ids"))
        if self.item == "" or (self.item is None and not self.prompt):
            raise InputError(f"{self.name}: expected something to repeat, found no text: give an item such as 'a'")
        if self.items == "ids" and not self.prompt:
            raise InputError(f"{self.name}: items='ids' finds the item's token behind a text, found none: give one")

    @property
    def example(self) -> str:
        return self.prompt + (self.item * 6 if self.item is not None else "")

    def pairs(self, encoder: Encoder, lengths: Sequence[int], seed: int = 0) -> Iterator[Pair]:
        if self.item is None:
            (ids,) = encoder.ids([self.prompt])
            yield from (theorem_pair(n, (*ids, *ids[-1:] * (n - 1))) for n in lengths)
        elif self.items == "ids":
            yield from self._pairs_of_ids(encoder, self.item, lengths)
        else:
            yield from self._pairs_of_text(encoder, self.item, lengths)

    def _pairs_of_ids(self, encoder: Encoder, item: str, lengths: Sequence[int]) -> Iterator[Pair]:
        """The text, and the item's own id."""
        (before,) = encoder.ids([self.prompt])
        index = item_ids(encoder, self.prompt, [item])[item]
        yield from (theorem_pair(n, (*before, *(index,) * n)) for n in lengths)

    def _pairs_of_text(self, encoder: Encoder, item: str, lengths: Sequence[int]) -> Iterator[Pair]:
        """Each prompt tokenized whole; with the item once more, the text has to be tokenized into v*."""
        counts = sorted({*lengths, *(n + 1 for n in lengths)})
        ids = dict(zip(counts, encoder.ids([self.prompt + item * n for n in counts]), strict=True))
        for n in lengths:
            require_no_merge(encoder, f"{self.name} at length {n}", item, ids[n], ids[n + 1])
            yield theorem_pair(n, ids[n])


def letters(items: ItemsAs = "text") -> RepeatTask:
    """A question and the letter a, again and again."""
    return RepeatTask("letters", "How many letters are in the following sequence?", "a", items)


def words(items: ItemsAs = "text") -> RepeatTask:
    """A question and the word " and", again and again."""
    return RepeatTask("words", "How many words are in the following sentence?", " and", items)


def last_token(prompt: str = TEXT) -> RepeatTask:
    """Any text, its last token repeated (by its id: the token's text could become another token beside a copy)."""
    return RepeatTask("text", prompt, None, "ids")


REPEATS = {"letters": letters, "words": words}
