"""The four linearisations of docs/theory.md 2, and what each holds constant: the one place that knows."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from transformer_lens.model_bridge import TransformerBridge

import hooks


@dataclass(frozen=True)
class HeldParts:
    """Whether attention patterns, and whether norm scales, are constants of the derivative."""

    attention: bool
    norms: bool


HELD: Mapping[str, HeldParts] = {
    "full": HeldParts(attention=False, norms=False),
    "frozen": HeldParts(attention=True, norms=True),
    "frozen-attention": HeldParts(attention=True, norms=False),
    "frozen-norm": HeldParts(attention=False, norms=True),
}
LINEARISATIONS = tuple(HELD)


def freezing(model: TransformerBridge, linearisation: str) -> AbstractContextManager[None]:
    """The context in which a forward pass has that linearisation."""
    held = HELD[linearisation]
    if not (held.attention or held.norms):
        return nullcontext()
    return hooks.frozen(model, attention=held.attention, norms=held.norms)
