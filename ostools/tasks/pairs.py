"""The pair of Theorem 4.2 / B.3, built on token ids and proved: v of n tokens, v* = v with its last token once more.

Text alone makes no pair: a tokenizer may merge the repeated item ('1' + '1' -> '11'), and then v* is another sequence.
No torch is needed here.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, runtime_checkable

from ostools.ground.errors import InputError, short_repr, unknown_name
from ostools.tasks.appendix_c import NAMES, AppendixTask
from ostools.tasks.base import AnyTask, Task

PairKind = Literal["theorem", "one-more-digit", "task"]
ItemsAs = Literal["text", "ids"]
# Their prompts end in the sequence itself, which Figure 5 compares.
_WITHOUT_END = ("copy", "count-ones-figure-5")
TASK_PAIRS = tuple(name for name in NAMES if name not in _WITHOUT_END)


@runtime_checkable
class Encoder(Protocol):
    """Interface to a tokenizer: texts to ids, its special tokens around each as around any prompt, and an id shown."""

    def ids(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        """The token ids of each text."""
        ...

    def token(self, index: int) -> str:
        """Text to show for one id."""
        ...


@dataclass(frozen=True)
class Pair:
    """Two prompts whose last-token representations are compared, `ids` (v) and `extended` (v*).

    kind: "theorem": v* is v with its last token repeated once, which is proved when the pair is made; "one-more-digit":
        v* has one more item, after a separator; "task": a task's prompt with one more item, and text
        after the sequence. Of the last two no theorem speaks.
    length: how many items v has (not tokens).

    Raises `InputError` for a "theorem" pair of which this does not hold.
    """

    kind: PairKind
    length: int
    ids: tuple[int, ...]
    extended: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.ids or not self.extended:
            raise InputError("a pair needs two prompts of at least one token each, found an empty one")
        if self.kind == "theorem" and not repeats_last(self.ids, self.extended):
            raise InputError(
                f"no theorem pair at length {self.length}: expected v* = v with its last token {self.ids[-1]} once more, "
                f"found v of {len(self.ids)} tokens and v* of {len(self.extended)} ending in {self.extended[-2:]}"
            )


class CollapseTask(AnyTask):
    """Pairs that `collapse` compares: for every length n a pair of prompts, built and proved on token ids.

    items: "text" tokenizes each prompt whole, and refuses a tokenizer that merges what is repeated. "ids" puts every item in by
        its own token id, even if the tokenizer would merge it.
    """

    items: ItemsAs

    @property
    def example(self) -> str:
        """A short prompt of this task, to show."""
        return ""

    @abstractmethod
    def pairs(self, encoder: Encoder, lengths: Sequence[int], seed: int = 0) -> Iterable[Pair]:
        """The pairs of every kind at every length. Raises `InputError` where this tokenizer makes none."""


class FormPairs(CollapseTask):
    """Pairs whose prompts are those of a task, its `form`."""

    form: Task

    @property
    def random(self) -> bool:
        return self.form.random

    @property
    def trained_as(self) -> str | None:
        return self.form.trained_as


class NextPairs(FormPairs):
    """The prompts of `form` with n and n + 1 items, of which no theorem speaks."""

    items: ClassVar[ItemsAs] = "text"

    @property
    def name(self) -> str:
        return self.form.name

    @abstractmethod
    def ids(self, encoder: Encoder, counts: Sequence[int], seed: int) -> Mapping[int, tuple[int, ...]]:
        """The token ids of the prompt with each number of items."""

    def pairs(self, encoder: Encoder, lengths: Sequence[int], seed: int = 0) -> Iterator[Pair]:
        ids = self.ids(encoder, sorted({*lengths, *(n + 1 for n in lengths)}), seed)
        yield from (Pair("task", n, ids[n], ids[n + 1]) for n in lengths)


@dataclass(frozen=True)
class TaskPairs(NextPairs):
    """The prompts of Appendix C.1 with n and n + 1 items, and the text after the sequence: no theorem speaks of them, but they
    are what a model is asked. Raises `InputError` for a task whose prompt ends in its sequence."""

    form: AppendixTask

    def __post_init__(self) -> None:
        if not isinstance(self.form, AppendixTask):
            raise InputError(f"expected a task such as ost.tasks.task('count-ones'), found {short_repr(self.form)}")
        if self.form.name in _WITHOUT_END:
            raise unknown_name("task with text after its sequence", self.form.name, TASK_PAIRS)

    @property
    def example(self) -> str:
        return self.form.prompt(6)

    def ids(self, encoder: Encoder, counts: Sequence[int], seed: int) -> dict[int, tuple[int, ...]]:
        return dict(zip(counts, encoder.ids([self.form.prompt(n, seed) for n in counts]), strict=True))


def task_pairs(form: AppendixTask | str) -> TaskPairs:
    """The pairs of a task, by its name or with its options."""
    return TaskPairs(form if isinstance(form, AppendixTask) else AppendixTask(form))


def repeats_last(ids: Sequence[int], extended: Sequence[int]) -> bool:
    """The proof: v*[:n] == v, v*[n] == v[n-1], and v* ends there."""
    n = len(ids)
    return len(extended) == n + 1 and tuple(extended[:n]) == tuple(ids) and extended[n] == ids[n - 1]


def theorem_pair(length: int, ids: tuple[int, ...]) -> Pair:
    """The pair on ids: v, and v with its last token once more."""
    return Pair("theorem", length, ids, (*ids, ids[-1]))


def item_ids(encoder: Encoder, before: str, items: Iterable[str]) -> dict[str, int]:
    """The one token of each item, as it stands after `before`. Raises `InputError` if it has no single token."""
    id_by_item: dict[str, int] = {}
    pieces = sorted(set(items))
    prefix, *encoded = encoder.ids([before, *(before + piece for piece in pieces)])
    for piece, ids in zip(pieces, encoded, strict=True):
        if ids[:-1] != prefix:
            last_tokens = ", ".join(repr(encoder.token(index)) for index in ids[-2:])
            raise InputError(
                f"expected {piece!r} to be one token of its own after {before[-12:]!r}, found the tokens ... {last_tokens}: "
                "this tokenizer has no token for it alone"
            )
        id_by_item[piece] = ids[-1]
    return id_by_item


def require_no_merge(
    encoder: Encoder, task: str, length: int, item: str, ids: Sequence[int], extended: Sequence[int]
) -> None:
    """Refuse a tokenizer that merges the repeated `item`: say what became of it, and offer the pair of `task` on ids.

    `ids` are the tokens of a prompt that ends in `item`, `extended` those of the same text with `item` once more.
    """
    if repeats_last(ids, extended):
        return
    common = next(
        (i for i, (a, b) in enumerate(zip(ids, extended, strict=False)) if a != b), min(len(ids), len(extended))
    )
    # One token more to the left, so that a merge across the end of v shows whole.
    start = max(0, min(common, len(ids) - 1))
    before = [encoder.token(index) for index in ids[start:]]
    after = [encoder.token(index) for index in extended[start:]]
    raise InputError(
        f"{task} at length {length}: expected {item!r} repeated at the end of the prompt to be one more token of the same id, "
        f"found {''.join(before)!r} + {item!r} -> {'tokens' if len(after) > 1 else 'token'} {', '.join(map(repr, after))}: "
        f"this tokenizer merges the repeat; put the item in by its token, with the task's items='ids' ('{task}:items=ids')"
    )
