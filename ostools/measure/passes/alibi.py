"""ALiBi in a packed pass: every key gets the bias of its place in the prompt.

ALiBi adds -m_h |i - j| to the scores of head h. The models add m_h times the number of the key, which differs from it by a
number that all keys of a query share, so that the softmax is the same. In a packed pass a key's number in the pass is not its
place in the prompt: branches stand after each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jaxtyping import Int
from torch import Tensor, nn
from transformer_lens.model_bridge import TransformerBridge

from hooks.register import before_modules
from ostools.models.families import family_of

_NAMES = ("alibi", "position_bias")
"""What Bloom and MPT call the bias that they hand to a block, one number a key: [..., key]."""


def has_alibi(model: TransformerBridge) -> bool:
    """Whether positions enter a model's scores as ALiBi's bias; such a model takes no position ids."""
    family = family_of(model)
    return family is not None and family.positions == "ALiBi"


@contextmanager
def bias_at(model: TransformerBridge, places: Int[Tensor, " key"]) -> Iterator[None]:
    """Run the block with the bias of key k being that of the model's own key number `places[k]`.

    MPT's is as long as its longest prompt, and its end is read: place p of a pass over n keys gets m_h (p + 1 - n).
    """

    def with_bias(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        (name,) = [name for name in _NAMES if kwargs.get(name) is not None]
        bias = kwargs[name][..., -len(places) :]
        return args, kwargs | {name: bias[..., places.to(bias.device)]}

    with before_modules(
        {f"blocks.{layer}": block for layer, block in enumerate(model.blocks)}, with_bias, kind="alibi"
    ):
        yield
