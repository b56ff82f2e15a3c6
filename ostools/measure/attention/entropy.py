"""How widely the last token's attention spreads, head by head."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Unpack

import numpy as np
import torch

from ostools.ground.lens import TransformerBridge
from ostools.ground.names import Position
from ostools.measure.attention.attention import attention
from ostools.measure.measurement import measurement
from ostools.measure.swept import READ_POSITION, Swept
from ostools.mitigations import Mitigation
from ostools.models import Prompt
from ostools.models.tokens import EncodingOptions
from ostools.results import Chart, Result
from ostools.results.table_head import TableHead
from ostools.tasks.questions import Question


@dataclass(frozen=True, eq=False)
class AttentionEntropy(Result):
    """Spread of the last token's attention: one row is one layer and head.

    Columns: layer, head, entropy (nats), effective_tokens (its exponential, from 1 to the number of
    tokens).
    """

    tables: ClassVar = (TableHead(columns="layer head effective_tokens", greatest="entropy"),)

    def chart(self) -> Chart:
        from ostools.reporting.charts.attention import entropy_chart

        return entropy_chart(self)

    def findings(self) -> list[str]:
        spread = self.frame["effective_tokens"]
        return [
            f"A head spreads over {spread.median():.3g} tokens in the median, "
            f"{spread.min():.3g} to {spread.max():.3g}."
        ]


@measurement(
    command="attention entropy",
    examples=('--prompt "Once upon a time" --out entropy.png',),
    memory=["patterns"],
    sweep=lambda: SWEPT,
)
def attention_entropy(
    model: TransformerBridge,
    prompt: str | Prompt | Question,
    *,
    position: Position | None = None,
    mitigation: Mitigation | str | None = None,
    **encoding: Unpack[EncodingOptions],
) -> AttentionEntropy:
    """Measure over how many tokens each head spreads the last token's attention, -sum_i alpha_(n,i)
    log alpha_(n,i).

    Args:
        position: where a task's question is read, as in `collapse`.
        mitigation: a `mitigations.Mitigation` or its name with options, as in `ost.attention`.

    Raises `InputError` as `ost.attention` does. Cost: one forward pass.
    """
    weights = attention(model, prompt, position=position, mitigation=mitigation, **encoding)
    spread = torch.special.entr(weights.last.double()).sum(-1).flatten().numpy()
    heads = weights.frame.drop_duplicates(["layer", "head"])[["layer", "head"]]
    frame = heads.reset_index(drop=True).assign(entropy=spread)
    frame["effective_tokens"] = np.exp(frame["entropy"])
    parameters = {**weights.provenance.parameters, "measurement": "attention-entropy"}
    return AttentionEntropy(frame, replace(weights.provenance, parameters=parameters))


SWEPT = Swept(read=AttentionEntropy, options=READ_POSITION)
