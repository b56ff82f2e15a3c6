"""How many threads a model is worth."""

from __future__ import annotations

import os

from transformer_lens.model_bridge import TransformerBridge

SMALL = 20_000_000
"""Below this many parameters one thread computes as fast as several."""


def one_is_enough(model: TransformerBridge) -> bool:
    """Whether matrices are too small to share out: on busy cores two threads wait for each other and take far longer.

    False where the user said how many there are to be (OMP_NUM_THREADS).
    """
    return "OMP_NUM_THREADS" not in os.environ and sum(weight.numel() for weight in model.parameters()) < SMALL
