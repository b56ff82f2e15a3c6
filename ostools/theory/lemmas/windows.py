"""Exact collapse under windows: Theorem 4.2 without a limit.

If EVERY layer has a window of w keys, positions are relative (or there are none) and no key is seen from everywhere (a sink),
then v_i^(l) is a function of the l (w - 1) + 1 tokens up to i. On a repeated token it has stopped changing from that many
copies on, whatever the weights: not in the limit and not to some precision, but exactly. The condition is tight for generic
weights: one copy fewer and the token before the copies is still seen.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from ostools.ground.errors import InputError

RELATIVE = ("none", "rope", "alibi")
"""The encodings that say nothing but how far apart two tokens are."""


def exact_from(layers: int, window: int) -> int:
    """l (w - 1) + 1: the number of copies from which v^(l), after `layers` l blocks of `window` w, no longer changes."""
    if layers < 0 or window < 1:
        raise InputError(f"exact collapse: expected layers >= 0 and window >= 1, found {layers} and {window}")
    return layers * (window - 1) + 1


def steps(residual: Float[Tensor, "pos d_model"], copies: int) -> Float[Tensor, " copy"]:
    """||v_(c+1) - v_c|| / ||v_c|| between neighbouring ones of the last `copies` tokens, c = 1, 2, ..., copies - 1."""
    tail = residual[-copies:]
    return (tail[1:] - tail[:-1]).norm(dim=-1) / tail[:-1].norm(dim=-1)
