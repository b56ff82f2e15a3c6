"""How widely the last token's attention spreads, head by head."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import torch
from transformer_lens.model_bridge import TransformerBridge

from mitigations import Mitigation
from ostools.measure.attention.attention import attention
from ostools.measure.measurement import measurement
from ostools.models import Prompt
from ostools.results import Result


@dataclass(frozen=True, eq=False)
class AttentionEntropy(Result, chart="attention:entropy_chart"):
    """One row per layer and head: entropy (nats) and effective_tokens (its exponential, from 1 to the number of tokens)."""


@measurement(
    command="attention entropy",
    examples=('--prompt "Once upon a time" --out entropy.png',),
    memory="measure.attention.attention:patterns_memory",
)
def attention_entropy(
    model: TransformerBridge, prompt: str | Prompt, *, mitigation: Mitigation | str | None = None
) -> AttentionEntropy:
    """Measure over how many tokens each head spreads the last token's attention, -sum_i alpha_(n,i) log alpha_(n,i).

    Args:
        mitigation: a `mitigations.Mitigation` or its name with options, as in `ost.attention`.

    Raises `InputError` as `ost.attention` does. Cost: one forward pass.
    """
    weights = attention(model, prompt, mitigation=mitigation)
    entropy = torch.special.entr(weights.last.double()).sum(-1)
    layers, heads = entropy.shape
    cells: Any = [(layer, head) for layer in range(layers) for head in range(heads)]
    frame = pd.DataFrame(cells, columns=["layer", "head"]).assign(entropy=entropy.flatten().numpy())
    frame["effective_tokens"] = entropy.exp().flatten().numpy()
    parameters = {**weights.provenance.parameters, "measurement": "attention-entropy"}
    return AttentionEntropy(frame, replace(weights.provenance, parameters=parameters))
