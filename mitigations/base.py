"""Base class of mitigations: four methods, each doing nothing until it is overridden.

A mitigation rewrites the sequence or the prompt, changes the forward pass, or both, and can prove
on what was captured that it did. `insert` and `rewrite` apply the first kind and hold it to its
promise. `running` does so with the last: hooks are active and `verify` has looked at every forward
pass, or an error is raised. Its cost: `verify` on the pattern and the scores of every layer, which
the pass computes anyway; nothing is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

from ostools.ground import TransformerBridge, short_repr

if TYPE_CHECKING:  # importing them takes seconds, and a prompt rewrite needs none of it
    from jaxtyping import Int
    from torch import Tensor


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
        raise MitigationError(f"expected a mitigation, found {short_repr(mitigation)}")
    return mitigation


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
        """The task's items with text inserted between them."""
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

    Raises `MitigationError` for fewer than two mitigations.
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
    mitigation: Mitigation, items: Sequence[str], key: Callable[[Sequence[str]], str] = "".join
) -> tuple[str, ...]:
    """`mitigation.sequence(items)`, checked: it has the items in their order, an item first and
    last, and only other text between.

    key: the task's own answer to a sequence of items; by default the sequence itself. Inserted text
    may itself be an item (a zero between ones) as long as the answer stays what it was.

    Raises `MitigationError` if an item was changed, moved, dropped or added, if the answer would
    change, and if inserted text contains an item as a part of it: the answer key would not be the
    prompt's.
    """
    pieces, item_set = tuple(checked(mitigation).sequence(items)), set(items)
    name, remaining = f"{type(mitigation).__name__}.sequence", iter(pieces)
    in_order = all(item in remaining for item in items)
    if not in_order or (pieces[:1], pieces[-1:]) != (tuple(items[:1]), tuple(items[-1:])):
        raise MitigationError(
            f"{name} may only insert between the task's items, found {short_repr(pieces)}"
        )
    texts = [piece for piece in pieces if piece not in item_set]
    if wrong := [text for text in texts if not text or any(item in text for item in item_set)]:
        raise MitigationError(
            f"{name}: expected text that is not empty and contains no item, found {wrong[0]!r}"
        )
    new_key = key([piece for piece in pieces if any(letter.isalnum() for letter in piece)])
    if new_key != key(items):
        raise MitigationError(
            f"{name}: expected the answer {key(items)[:20]!r} to stand, found that with what was "
            f"inserted it would be {new_key[:20]!r}: this mitigation does not fit this task"
        )
    return pieces


def rewrite(mitigation: Mitigation, text: str) -> str:
    """`mitigation.prompt(text)`, checked. Raises `MitigationError` if the text is empty."""
    new_text = checked(mitigation).prompt(text)
    if not new_text:
        raise MitigationError(f"{type(mitigation).__name__}.prompt: expected a text, found none")
    return new_text


@contextmanager
def running(model: TransformerBridge, mitigation: Mitigation | None) -> Iterator[None]:
    """Run the block under the mitigation's hooks, and let it verify every layer of every forward
    pass.

    None, and a mitigation that only rewrites prompts, do not change anything. Raises
    `MitigationError` if its invariant is broken, and if it has one but no forward pass ran on which
    it could have been seen.
    """
    from ostools import hooks

    verifies = any(type(part).verify is not Mitigation.verify for part in parts(mitigation))
    scores: dict[int, Tensor] = {}
    verified = False

    def verify(pattern: Tensor, layer: Any) -> None:
        nonlocal verified
        # The scores came first; both are dropped then.
        record = {"scores": {layer: scores.pop(layer)}, "pattern": {layer: pattern}}
        cast(Mitigation, mitigation).verify(record)
        verified = True

    with ExitStack() as stack:
        if mitigation is not None:
            stack.enter_context(mitigation.hooks(model))
        if verifies:
            reduce = {
                "scores": lambda tensor, layer: scores.update({layer: tensor}),
                "pattern": verify,
            }
            stack.enter_context(hooks.capture(model, "pattern", "scores", reduce=reduce))
        yield
    if verifies and not verified:
        raise MitigationError(
            f"{type(mitigation).__name__}: expected a forward pass to verify, found none in the "
            "block"
        )


def changes_pass(mitigation: Mitigation | None) -> bool:
    """Whether it has hooks of its own. A mitigation without them only rewrites prompts."""
    return any(type(part).hooks is not Mitigation.hooks for part in parts(mitigation))


def acts(model: TransformerBridge, mitigation: Mitigation | None, ids: Int[Tensor, " pos"]) -> bool:
    """Whether its hooks change any logit of this prompt, bit for bit. A window wider than the
    prompt does not.

    Cost: two forward passes; none for a mitigation without hooks. A mitigation that did not change
    anything is inactive. It is never counted as a success.
    """
    if not changes_pass(mitigation):
        return False
    import torch

    prompt = ids[None].to(next(model.parameters()).device)
    with torch.no_grad():
        without = model(prompt, use_cache=False)
        with running(model, mitigation):
            changed = model(prompt, use_cache=False)
    return not torch.equal(without, changed)
