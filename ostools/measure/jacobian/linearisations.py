"""The five linearisations of docs/theory.md 2, and what each holds constant: the one place that knows."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from transformer_lens.model_bridge import TransformerBridge

import hooks


@dataclass(frozen=True)
class FrozenParts:
    """Whether attention patterns, norm scales and the activations of MLPs are constants of the derivative."""

    attention: bool
    norms: bool
    activations: bool = False

    @property
    def any(self) -> bool:
        return self.attention or self.norms or self.activations

    @property
    def all(self) -> bool:
        """The network is then linear in its embeddings, but for its biases."""
        return self.attention and self.norms and self.activations


FROZEN_PARTS: Mapping[str, FrozenParts] = {
    "full": FrozenParts(attention=False, norms=False),
    "frozen": FrozenParts(attention=True, norms=True),
    "frozen-attention": FrozenParts(attention=True, norms=False),
    "frozen-norm": FrozenParts(attention=False, norms=True),
    "detached": FrozenParts(attention=True, norms=True, activations=True),
}
LINEARISATIONS = tuple(FROZEN_PARTS)


def freezing(model: TransformerBridge, linearisation: str) -> AbstractContextManager[None]:
    """The context in which a forward pass has that linearisation."""
    frozen_parts = FROZEN_PARTS[linearisation]
    return (
        hooks.frozen(model, frozen_parts.attention, frozen_parts.norms, frozen_parts.activations)
        if frozen_parts.any
        else nullcontext()
    )
