"""The same architecture before any training: what a probe finds there, the training has not put in.

Cost: a second model of the same size, for as long as it is used.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from transformer_lens.model_bridge import TransformerBridge

from ostools.ground.errors import InputError
from ostools.models.families import family_of
from ostools.models.wrapping import wrapped


def random_weights(model: TransformerBridge, seed: int) -> TransformerBridge:
    """A model of the same configuration in float32, its weights drawn by the architecture's own initialisation.

    The same seed draws the same weights; torch's own stream of random numbers is left as it was. Raises `InputError` for an
    architecture that no record describes.
    """
    family, original = family_of(model), model.original_model
    if family is None:
        raise InputError(
            f"expected a model of a known family, whose initialisation is known, found {model.cfg.architecture}: leave the "
            "control on random weights out (random_weights=False)"
        )
    device = next(model.parameters()).device
    made: Any = type(original)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        drawn = made._from_config(copy.deepcopy(original.config), dtype=torch.float32, attn_implementation="eager")
        bridge = wrapped(drawn.to(device).eval(), family, f"{model.cfg.model_name}, random weights")
    bridge.tokenizer = model.tokenizer
    return bridge
