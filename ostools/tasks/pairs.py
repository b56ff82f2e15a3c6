"""The pair of Theorem 4.2 / B.3, built on token ids and proved: v of n tokens, v* = v with its last
token once more.

Text alone makes no pair: a tokenizer may merge the repeated item ('1' + '1' -> '11'), and then v*
is another sequence. No torch is needed here.

The prompts of Figure 5, (a) to (d), are such pairs. Nothing stands between the question and the
sequence, as in the paper's counting prompts ("... following sequence:{seq}"): after a space, some
tokenizers would give the first digit another token than the others. (b) is "digits sampled
uniformly ending with either a single one or two ones": v ends in a single one and v* in two, in
every pair. The paper does not say which digit stands before them. Here it is never a one: else the
pair of that seed would end in two ones and three. Source: arXiv 2406.04267, section 4 and Figure 5.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from ostools.ground import InputError, typed_fields
from ostools.mitigations import Mitigation, Separator, insert
from ostools.tasks.appendix_c import AppendixTask
from ostools.tasks.base import AnyTask

PairKind = Literal["theorem", "one-more-digit", "task"]
ItemsAs = Literal["text", "ids"]


@runtime_checkable
class Encoder(Protocol):
    """Interface to a tokenizer: texts to ids, its special tokens around each as around any prompt,
    and an id shown.
    """

    def ids(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        """The token ids of each text."""
        ...

    def token(self, index: int) -> str:
        """Text to show for one id."""
        ...


@dataclass(frozen=True)
class Pair:
    """Two prompts whose last-token representations are compared, `ids` (v) and `extended` (v*).

    kind: "theorem": v* is v with its last token repeated once, which is proved when the pair is
        made; "one-more-digit": v* has one more item, after a separator; "task": a task's prompt
        with one more item, and text after the sequence. Of the last two no theorem speaks.
    length: how many items v has (not tokens).

    Raises `InputError` for a "theorem" pair of which this does not hold.
    """

    kind: PairKind
    length: int
    ids: tuple[int, ...]
    extended: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.ids or not self.extended:
            raise InputError(
                "a pair needs two prompts of at least one token each, found an empty one"
            )
        if self.kind == "theorem" and not repeats_last(self.ids, self.extended):
            raise InputError(
                f"no theorem pair at length {self.length}: expected v* = v with its last token "
                f"{self.ids[-1]} once more, found v* that ends in {self.extended[-2:]}"
            )


class CollapseTask(AnyTask):
    """Pairs that `collapse` compares: for every length n a pair of prompts, built and proved on
    token ids.

    items: "text" tokenizes each prompt whole, and refuses a tokenizer that merges what is repeated.
        "ids" puts every item in by its own token id, even if the tokenizer would merge it.
    """

    items: ItemsAs

    @property
    def example(self) -> str:
        """A short prompt of this task, to show."""
        return ""

    @abstractmethod
    def pairs(self, encoder: Encoder, lengths: Sequence[int], seed: int = 0) -> Iterable[Pair]:
        """The pairs of every kind at every length. Raises `InputError` where this tokenizer makes
        none.
        """


def repeats_last(ids: Sequence[int], extended: Sequence[int]) -> bool:
    """The proof: v*[:n] == v, v*[n] == v[n-1], and v* ends there."""
    n = len(ids)
    return (
        len(extended) == n + 1 and tuple(extended[:n]) == tuple(ids) and extended[n] == ids[n - 1]
    )


def theorem_pair(length: int, ids: tuple[int, ...]) -> Pair:
    """The pair on ids: v, and v with its last token once more."""
    return Pair("theorem", length, ids, (*ids, ids[-1]))


Pieces = Mapping[int, Sequence[str]]
"""The pieces behind the question of a prompt, by the number of items; the last one is repeated."""


def ids_of_text(
    encoder: Encoder, task: str, question: str, pieces: Pieces, lengths: Sequence[int]
) -> dict[int, tuple[int, ...]]:
    """Token ids of each prompt, tokenized whole; the text with its last piece once more has to give
    v*. Raises `InputError` for a tokenizer that merges it, and offers the pair of `task` on ids.
    """
    texts = {length: question + "".join(parts) for length, parts in pieces.items()}
    repeated = {length: texts[length] + pieces[length][-1] for length in lengths}
    distinct = list(dict.fromkeys([*texts.values(), *repeated.values()]))
    ids = dict(zip(distinct, encoder.ids(distinct), strict=True))
    for n in lengths:
        before, after = ids[texts[n]], ids[repeated[n]]
        if not repeats_last(before, after):
            raise InputError(
                f"{task} at length {n}: expected {pieces[n][-1]!r} repeated at the end of the "
                "prompt to be one more token of the same id, found that it ends in "
                f"{[encoder.token(index) for index in after[-2:]]}: this tokenizer merges the "
                "repeat; put the item in by its token, with the task's items='ids' "
                f"('{task}:items=ids')"
            )
    return {length: ids[text] for length, text in texts.items()}


def ids_of_items(
    encoder: Encoder, question: str, pieces: Pieces, items: Iterable[str]
) -> dict[int, tuple[int, ...]]:
    """Token ids of each prompt, every piece put in by its own token: the `items` as they stand
    after the question, other pieces as they stand after an item.
    """
    item_set = set(items)
    id_by_piece = item_ids(encoder, question, item_set)
    id_by_piece |= item_ids(
        encoder, question + min(item_set), set().union(*pieces.values()) - item_set
    )
    (before,) = encoder.ids([question])
    return {n: (*before, *(id_by_piece[piece] for piece in parts)) for n, parts in pieces.items()}


def item_ids(encoder: Encoder, before: str, items: Iterable[str]) -> dict[str, int]:
    """The one token of each item, as it stands after `before`. Raises `InputError` if it has no
    single token.
    """
    id_by_item: dict[str, int] = {}
    pieces = sorted(set(items))
    prefix, *encoded = encoder.ids([before, *(before + piece for piece in pieces)])
    for piece, ids in zip(pieces, encoded, strict=True):
        if ids[:-1] != prefix:
            raise InputError(
                f"expected {piece!r} to be one token of its own after {before[-12:]!r}: this "
                "tokenizer has no token for it alone"
            )
        id_by_item[piece] = ids[-1]
    return id_by_item


@typed_fields(InputError)
@dataclass(frozen=True)
class Figure5Task(CollapseTask):
    """A question followed by a sequence that ends the prompt, so that its last token can be
    repeated.

    name: "figure-5a" to "figure-5d".
    form: the paper's prompt and its digits.
    mitigation: what is inserted between the digits ((d): a comma after every third).
    kinds: the pairs it makes. "one-more-digit" is reported apart, and made only where the next
        digit comes after a comma: its two prompts differ by two tokens, so that no theorem applies.
    items: "text" tokenizes each prompt whole and refuses a tokenizer that merges repeated digits;
        "ids" puts every digit in by its own token id, whatever the tokenizer would merge.
    """

    name: str
    form: AppendixTask
    mitigation: Mitigation
    kinds: tuple[PairKind, ...]
    items: ItemsAs

    @property
    def random(self) -> bool:
        return self.form.random

    @property
    def trained_as(self) -> str | None:
        return self.form.trained_as

    @property
    def example(self) -> str:
        return self.text(6)

    def text(self, length: int, seed: int = 0) -> str:
        """The prompt with a sequence of `length` digits."""
        return self.question + "".join(insert(self.mitigation, self.digits(length, seed)))

    def digits(self, length: int, seed: int = 0) -> tuple[str, ...]:
        """The `length` digits of v: those of `form`; where they are drawn they end in a single one,
        and v* in two.
        """
        digits = self.form.items(length, seed)
        if not self.form.random or digits[-2:] != ("1", "1"):
            return digits
        # A seed whose sequences end in two ones: this v* is the one with a digit more.
        return self.form.items(length + 1, seed)[:-1]

    @property
    def question(self) -> str:
        """Text before the sequence."""
        return self.form.parts(("1",))[0]

    def pairs(self, encoder: Encoder, lengths: Sequence[int], seed: int = 0) -> Iterator[Pair]:
        """The pairs of every kind at every length, each proved on its token ids.

        Raises `InputError` where the tokenizer merges what is repeated (`items="text"`), or has no
        token for a digit alone.
        """
        longer = (n + 1 for n in lengths if "one-more-digit" in self.kinds)
        digits = {n: self.digits(n, seed) for n in sorted({*lengths, *longer})}
        pieces = {n: insert(self.mitigation, items) for n, items in digits.items()}
        if self.items == "text":
            ids = ids_of_text(encoder, self.name, self.question, pieces, lengths)
        else:
            ids = ids_of_items(encoder, self.question, pieces, set().union(*digits.values()))
        for length in lengths:
            for kind in self.kinds:
                if kind == "theorem":
                    yield theorem_pair(length, ids[length])
                # Else it is the theorem's pair again.
                elif not repeats_last(ids[length], ids[length + 1]):
                    yield Pair(kind, length, ids[length], ids[length + 1])


def figure_5a(items: ItemsAs = "text") -> Figure5Task:
    """Figure 5 (a): "How many ones are in the following sequences?" and ones."""
    return Figure5Task(
        "figure-5a", AppendixTask("count-ones-figure-5"), Mitigation(), ("theorem",), items
    )


def figure_5b(items: ItemsAs = "text") -> Figure5Task:
    """Figure 5 (b): the same question and uniformly sampled digits; v ends in a single one, v* in
    two.
    """
    form = AppendixTask("count-ones-figure-5", uniform=True)
    return Figure5Task("figure-5b", form, Mitigation(), ("theorem",), items)


def figure_5c(items: ItemsAs = "text") -> Figure5Task:
    """Figure 5 (c): "Can you copy the following number?" and ones."""
    return Figure5Task("figure-5c", AppendixTask("copy"), Mitigation(), ("theorem",), items)


def figure_5d(items: ItemsAs = "text") -> Figure5Task:
    """Figure 5 (d): (c) with a comma after every third digit; pairs "theorem" and, apart,
    "one-more-digit".
    """
    kinds: tuple[PairKind, ...] = ("theorem", "one-more-digit")
    return Figure5Task("figure-5d", AppendixTask("copy"), Separator(every=3), kinds, items)


FIGURE_5 = {
    "figure-5a": figure_5a,
    "figure-5b": figure_5b,
    "figure-5c": figure_5c,
    "figure-5d": figure_5d,
}
"""Figure 5's pairs by name."""
