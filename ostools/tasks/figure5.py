"""The prompts of Figure 5, (a) to (d), as pairs for `collapse`.

Nothing stands between the question and the sequence, as in the paper's counting prompts ("... following sequence:{seq}"): after
a space, some tokenizers would give the first digit another token than the others.

(b) is "digits sampled uniformly ending with either a single one or two ones": v ends in a single one and v* in two, in every
pair. The paper does not say which digit stands before them. Here it is never a one: else the pair of that seed would end in two
ones and three. Source: arXiv 2406.04267, section 4 and Figure 5.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mitigations import Mitigation, Separator, insert
from ostools.ground.names import checked_name
from ostools.tasks.appendix_c import AppendixTask
from ostools.tasks.pairs import (
    Encoder,
    FormPairs,
    ItemsAs,
    Pair,
    PairKind,
    item_ids,
    repeats_last,
    require_no_merge,
    theorem_pair,
)


@dataclass(frozen=True)
class Figure5Task(FormPairs):
    """A question followed by a sequence that ends the prompt, so that its last token can be repeated.

    name: "figure-5a" to "figure-5d".
    form: the paper's prompt and its digits.
    mitigation: what is inserted between the digits ((d): a comma after every third).
    kinds: the pairs it makes. "one-more-digit" is reported apart, and made only where the next digit comes after a comma: its
        two prompts differ by two tokens, so that no theorem applies.
    items: "text" tokenizes each prompt whole and refuses a tokenizer that merges repeated digits; "ids" puts every digit
        in by its own token id, whatever the tokenizer would merge.
    """

    name: str
    form: AppendixTask
    mitigation: Mitigation
    kinds: tuple[PairKind, ...]
    items: ItemsAs

    def __post_init__(self) -> None:
        checked_name("items", self.items, ("text", "ids"))

    @property
    def example(self) -> str:
        return self.text(6)

    def text(self, length: int, seed: int = 0) -> str:
        """The prompt with a sequence of `length` digits."""
        return self.question + "".join(insert(self.mitigation, self.digits(length, seed)))

    def digits(self, length: int, seed: int = 0) -> tuple[str, ...]:
        """The `length` digits of v: those of `form`; where they are drawn they end in a single one, and v* in two."""
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

        Raises `InputError` where the tokenizer merges what is repeated (`items="text"`), or has no token for a digit alone.
        """
        all_lengths = set(lengths)
        if "one-more-digit" in self.kinds:
            all_lengths |= {length + 1 for length in lengths}
        items = {length: self.digits(length, seed) for length in sorted(all_lengths)}
        ids = self._ids_of_text(encoder, items, lengths) if self.items == "text" else self._ids_of_items(encoder, items)
        for length in lengths:
            for kind in self.kinds:
                if kind == "theorem":
                    yield theorem_pair(length, ids[length])
                elif not repeats_last(ids[length], ids[length + 1]):  # else it is the theorem's pair again
                    yield Pair(kind, length, ids[length], ids[length + 1])

    def _ids_of_text(
        self, encoder: Encoder, items: Mapping[int, tuple[str, ...]], lengths: Sequence[int]
    ) -> dict[int, tuple[int, ...]]:
        """Token ids of each prompt, tokenized whole; the text with its last digit once more has to give v*."""
        texts = {length: self.question + "".join(insert(self.mitigation, digits)) for length, digits in items.items()}
        repeated = {length: texts[length] + items[length][-1] for length in lengths}
        distinct = list(dict.fromkeys([*texts.values(), *repeated.values()]))
        ids = dict(zip(distinct, encoder.ids(distinct), strict=True))
        for length in lengths:
            text = texts[length]
            require_no_merge(encoder, self.name, length, items[length][-1], ids[text], ids[repeated[length]])
        return {length: ids[text] for length, text in texts.items()}

    def _ids_of_items(self, encoder: Encoder, items: Mapping[int, tuple[str, ...]]) -> dict[int, tuple[int, ...]]:
        pieces = {length: insert(self.mitigation, digits) for length, digits in items.items()}
        digits = set().union(*items.values())
        id_by_item = item_ids(encoder, self.question, digits)
        id_by_item |= item_ids(encoder, self.question + min(digits), set().union(*pieces.values()) - digits)
        (question,) = encoder.ids([self.question])
        return {length: (*question, *(id_by_item[piece] for piece in parts)) for length, parts in pieces.items()}


def figure_5a(items: ItemsAs = "text") -> Figure5Task:
    """Figure 5 (a): "How many ones are in the following sequences?" and ones."""
    return Figure5Task("figure-5a", AppendixTask("count-ones-figure-5"), Mitigation(), ("theorem",), items)


def figure_5b(items: ItemsAs = "text") -> Figure5Task:
    """Figure 5 (b): the same question and uniformly sampled digits; v ends in a single one, v* in two."""
    form = AppendixTask("count-ones-figure-5", uniform=True)
    return Figure5Task("figure-5b", form, Mitigation(), ("theorem",), items)


def figure_5c(items: ItemsAs = "text") -> Figure5Task:
    """Figure 5 (c): "Can you copy the following number?" and ones."""
    return Figure5Task("figure-5c", AppendixTask("copy"), Mitigation(), ("theorem",), items)


def figure_5d(items: ItemsAs = "text") -> Figure5Task:
    """Figure 5 (d): (c) with a comma after every third digit; pairs "theorem" and, apart, "one-more-digit"."""
    kinds: tuple[PairKind, ...] = ("theorem", "one-more-digit")
    return Figure5Task("figure-5d", AppendixTask("copy"), Separator(every=3), kinds, items)


FIGURE_5 = {"figure-5a": figure_5a, "figure-5b": figure_5b, "figure-5c": figure_5c, "figure-5d": figure_5d}
