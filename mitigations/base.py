"""Base class of mitigations: four methods, each doing nothing until it is overridden.

A mitigation rewrites the sequence or the prompt, changes the forward pass, or both, and can prove
on what was captured that it did. `insert` applies the first kind and holds it to its promise;
`mitigations.contract` the last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ostools.ground.errors import short_repr

if TYPE_CHECKING:  # importing them takes seconds, and a prompt rewrite needs none of it
    from torch import Tensor

    from ostools.ground.lens import TransformerBridge


class MitigationError(ValueError):
    """A mitigation cannot be built, or broke its promise. The message says what was expected and
    what was found.
    """


def require_whole(thing: object, field: str, least: int) -> None:
    """Refuse, with `MitigationError`, a field that is no whole number or below `least`."""
    value = getattr(thing, field)
    if type(value) is not int or value < least:
        raise MitigationError(
            f"{type(thing).__name__}: expected {field} of at least {least}, found {value!r}"
        )


def checked(mitigation: object) -> Mitigation:
    """Return the argument if it is a mitigation. Raises `MitigationError` for anything else, and
    for a name.
    """
    if not isinstance(mitigation, Mitigation):
        advice = (
            f": mitigations.mitigation({mitigation!r:.60})" if isinstance(mitigation, str) else ""
        )
        raise MitigationError(f"expected a mitigation, found {short_repr(mitigation)}{advice}")
    return mitigation


class Label(str):
    """A piece of text that says the place of the item after it, such as "3:".

    Other inserted text may not contain an item of the task. A label may contain one, because what
    stands before its item is not taken for an item.
    """


class Bar(str):
    """A piece of text between two parts of a sequence whose answers add up to the answer of the
    whole, such as " | ".
    """


class Mitigation:
    """Base class of a mitigation. Override what you need; the methods that you leave alone do
    nothing.

    Subclasses are small frozen dataclasses whose fields define their numbers. counts_parts: whether
    the prompt asks for the answer of each part of the sequence, with a `Bar` between two, before
    the final line.
    """

    counts_parts: ClassVar[bool] = False

    def sequence(self, items: Sequence[str]) -> Sequence[str]:
        """The task's items with text inserted between them. Apart from that, only a `Label` may
        stand before each item.
        """
        return items

    def prompt(self, text: str) -> str:
        """The whole prompt, rewritten."""
        return text

    def hooks(self, model: TransformerBridge) -> AbstractContextManager[None]:
        """The block in which the forward pass has to run."""
        return nullcontext()

    def verify(self, record: Mapping[str, Mapping[int, Tensor]]) -> None:
        """Raise `MitigationError` where what was captured breaks this mitigation's own invariant.

        Called for every layer of every forward pass, with that layer alone: `record["pattern"]` and
        `record["scores"]` map the layer to a tensor [batch, head, query, key]. With a key/value
        cache the queries are the last of the keys.
        """


@dataclass(frozen=True)
class Composed(Mitigation):
    """Several mitigations as one, applied in the order given.

    The first sees the task's own items, prompt and model. Each of the others sees what those before
    it have made. If two change the same scores, the later one changes what the earlier one has made
    of them. Each keeps its own invariant on every pass.

    Raises `MitigationError` for fewer than two mitigations, and for one that inserts text after
    another has given the items labels.
    """

    parts: tuple[Mitigation, ...]

    def __post_init__(self) -> None:
        if len(self.parts) < 2:
            raise MitigationError(
                f"Composed: expected at least two mitigations, found {len(self.parts)}"
            )
        for part in self.parts:
            checked(part)

    def sequence(self, items: Sequence[str]) -> Sequence[str]:
        for part in self.parts:
            labelled = any(isinstance(item, Label) for item in items)
            if labelled and type(part).sequence is not Mitigation.sequence:
                raise MitigationError(
                    f"{type(part).__name__} would take labels for items: put what labels the items "
                    "behind it"
                )
            items = part.sequence(items)
        return items

    def prompt(self, text: str) -> str:
        for part in self.parts:
            text = part.prompt(text)
        return text

    @contextmanager
    def hooks(self, model: TransformerBridge) -> Iterator[None]:
        with ExitStack() as stack:
            for part in self.parts:
                stack.enter_context(part.hooks(model))
            yield

    def verify(self, record: Mapping[str, Mapping[int, Tensor]]) -> None:
        for part in self.parts:
            part.verify(record)


def compose(*mitigations: Mitigation) -> Mitigation:
    """The mitigations as one, in their order. A single one stays itself."""
    return checked(mitigations[0]) if len(mitigations) == 1 else Composed(mitigations)


def parts(mitigation: Mitigation | None) -> Iterator[Mitigation]:
    """The mitigations that one is composed of, however it is nested. A simple one gives itself, and
    None gives nothing.
    """
    if isinstance(mitigation, Composed):
        for part in mitigation.parts:
            yield from parts(part)
    elif mitigation is not None:
        yield checked(mitigation)


def insert(
    mitigation: Mitigation, items: Sequence[str], key: Callable[[Sequence[str]], str] | None = None
) -> tuple[str, ...]:
    """`mitigation.sequence(items)`, checked: it has the items in their order, an item first and
    last, and only other text between.

    key: the task's own answer to a sequence of items. With it, inserted text may itself be an item
    (a zero between ones) as long as the answer stays what it was. Without it, inserted text may not
    be an item.

    Raises `MitigationError` if an item was changed, moved, dropped or added, if the answer would
    change, and if inserted text contains an item as a part of it: the answer key would not be the
    prompt's. A `Label` may contain one. It has to stand before an item, and the answer must be the
    same whether the labels between the items are read as text or as items.
    """
    pieces = tuple(checked(mitigation).sequence(items))
    if problem := _problem_of(pieces, items, only_text=key is None):
        raise MitigationError(f"{type(mitigation).__name__}.sequence{problem}")
    if key is not None:
        _require_key(type(mitigation).__name__, items, pieces, key)
    return pieces


def _problem_of(pieces: Sequence[str], items: Sequence[str], only_text: bool) -> str:
    """Why the pieces are not the items in their order with other text between; "" where they are.

    only_text: inserted text may not be an item either.
    """
    item_set, texts = set(items), [piece for piece in pieces if not isinstance(piece, Label)]
    if not all(texts):
        return f": expected pieces of text, none of them empty, found {short_repr(texts)}"
    if not _hold_in_order(texts, items, only_text):
        return f" may only insert between the task's items, found {short_repr(texts)}"
    if texts[:1] != list(items[:1]) or texts[-1:] != list(items[-1:]):
        return f" may insert between items only, found text outside: {short_repr(texts)}"
    if inside := [piece for piece in texts if _contains_an_item(piece, item_set)]:
        return f" inserted {inside[:1]}, which contains an item of the task"
    if not _labels_precede_items(pieces, item_set):
        return (
            ": expected every label before an item, and a label that is no item, found "
            f"{short_repr(pieces)}"
        )
    return ""


def _hold_in_order(texts: Sequence[str], items: Sequence[str], only_text: bool) -> bool:
    """Whether the items stand among the texts in their order; where `only_text`, none more."""
    remaining, item_set = iter(texts), set(items)
    in_order = all(item in remaining for item in items)
    return in_order and not (
        only_text and [piece for piece in texts if piece in item_set] != list(items)
    )


def _contains_an_item(piece: str, item_set: set[str]) -> bool:
    """Whether text that is no item itself has one within it."""
    return piece not in item_set and any(item in piece for item in item_set)


def _labels_precede_items(pieces: Sequence[str], item_set: set[str]) -> bool:
    """Whether every label precedes an item (or a bar) and is neither empty nor itself an item."""
    return not any(
        isinstance(label, Label)
        and (isinstance(next_piece, Label) or label.strip() in item_set or not label)
        for label, next_piece in zip(pieces, (*pieces[1:], Label()), strict=True)
    )


def _require_key(
    name: str, items: Sequence[str], pieces: Sequence[str], key: Callable[[Sequence[str]], str]
) -> None:
    """Check that the answer is the same with the inserted text as without it.

    A label before the first item is not between items. Of one item alone nothing is: two of it are
    asked about.
    """
    if len(items) == 1 and len(pieces) == 2:
        items, pieces = (*items, *items), (*items, *pieces)
    as_items = [piece for piece in pieces if any(character.isalnum() for character in piece)]
    as_items = as_items[1:] if isinstance(as_items[0], Label) else as_items
    try:
        new_key = key(as_items)
    except ValueError:  # a sum that has a label to add
        new_key = None
    if new_key != key(items):
        raise MitigationError(
            f"{name}.sequence: expected the answer {key(items)[:20]!r} to stand, found that with "
            f"what was inserted it would be {'none' if new_key is None else repr(new_key[:20])}: "
            "this mitigation does not fit this task"
        )


def rewrite(mitigation: Mitigation, text: str) -> str:
    """`mitigation.prompt(text)`, checked. Raises `MitigationError` if the text is empty."""
    new_text = checked(mitigation).prompt(text)
    if not new_text:
        raise MitigationError(
            f"{type(mitigation).__name__}.prompt: expected a text that is not empty, found "
            f"{new_text!r}"
        )
    return new_text
