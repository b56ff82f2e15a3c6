"""What a mitigation is: one small class with four methods, each doing nothing until it is overridden.

A mitigation rewrites the sequence or the prompt, changes the forward pass, or both, and can prove on what was captured
that it did. `insert` applies the first kind and holds it to its promise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # importing it takes seconds, and a prompt rewrite needs none of it
    from transformer_lens.model_bridge import TransformerBridge


class MitigationError(ValueError):
    """A mitigation cannot be built, or broke its promise; the message says what was expected and found."""


class Mitigation:
    """Something that may help. Override what you need; what is left alone does nothing.

    Subclasses are small frozen dataclasses whose fields define their numbers.
    """

    def sequence(self, items: Sequence[str]) -> Sequence[str]:
        """The task's items with text inserted between them, and nothing else: the answer key has to stand."""
        return items

    def prompt(self, text: str) -> str:
        """The whole prompt, rewritten."""
        return text

    def hooks(self, model: TransformerBridge) -> AbstractContextManager[None]:
        """The block in which the forward pass has to run."""
        return nullcontext()

    def verify(self, record: Mapping[str, Any]) -> None:
        """Raise where what was captured (a `hooks.Record`) breaks this mitigation's own invariant."""


def insert(mitigation: Mitigation, items: Sequence[str]) -> tuple[str, ...]:
    """`mitigation.sequence(items)`, checked: the items in their order, first and last, with only other text between.

    Raises `MitigationError` where an item was changed, moved, dropped or added, and where inserted text contains an
    item: the answer key would no longer be the prompt's.
    """
    pieces = tuple(mitigation.sequence(items))
    name = type(mitigation).__name__
    known = set(items)
    if [piece for piece in pieces if piece in known] != list(items):
        raise MitigationError(f"{name}.sequence may only insert between the task's items, found {_shown(pieces)}")
    if items and (pieces[0] != items[0] or pieces[-1] != items[-1]):
        raise MitigationError(f"{name}.sequence may insert between items only, found text outside: {_shown(pieces)}")
    for piece in pieces:
        if piece not in known and any(item in piece for item in known):
            raise MitigationError(f"{name}.sequence inserted {piece!r}, which contains an item of the task")
    return pieces


def _shown(pieces: Sequence[str]) -> str:
    return repr(list(pieces[:8])) + (" ..." if len(pieces) > 8 else "")
