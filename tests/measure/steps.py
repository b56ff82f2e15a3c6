"""The oracle of what goes step by step: a pass over the whole text for each token, without cache,
batch or padding.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from ostools.measure.passes.contexts import true_arithmetic


def step_logits(model: TransformerBridge, ids: Sequence[int], written: Sequence[int]) -> Tensor:
    """The logits before each token that was written after `ids`, and after the last of them, [1 +
    written, d_vocab].
    """
    with torch.no_grad(), true_arithmetic(model):
        texts = ([*ids, *written[:step]] for step in range(len(written) + 1))
        return torch.stack([model(torch.tensor([text]), use_cache=False)[0, -1] for text in texts])


def without_ends(model: Any) -> None:
    """Answers of full length, so that two routes have much to agree on."""
    model.original_model.generation_config.eos_token_id = None
    model.tokenizer.eos_token = None
