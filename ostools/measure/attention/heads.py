"""Scores of every attention head, to choose from before taking any out: sink, previous token,
entropy, where the answer stands.

Cost: one forward pass a prompt; patterns are read layer by layer and never kept.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Unpack

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ostools.ground import InputError, Position, TransformerBridge
from ostools.hooks.precision import hidden
from ostools.measure.measurement import measurement
from ostools.measure.mitigated_prompts import MitigatedPrompts
from ostools.measure.passes.contexts import captured_pass
from ostools.measure.position import read_entry
from ostools.measure.task_prompt import TaskPrompt, carrier_positions
from ostools.mitigations import Mitigation
from ostools.models import EncodingOptions, Prompt
from ostools.models.chat import TEXT
from ostools.results import Chart, Frame, Provenance, Result
from ostools.tasks import Question

SINK = 0.3
"""Gu et al.'s epsilon: a weight above it makes the first token a sink."""
SCORES = (
    *("first_token", "sink_rate", "is_sink", "previous_token", "entropy", "normalised_entropy"),
    *("last_to_first", "last_to_itself", "last_to_text", "last_to_carriers"),
)
"""The columns of `HeadScores.frame` that are scores."""

_ROUNDING = 1e-2
PerHead = Float[Tensor, "layer head"] | Bool[Tensor, "layer head"]


@dataclass(frozen=True, eq=False)
class HeadScores(Result):
    """One row per prompt, layer and head; queries are all but the first token, which can only
    attend to itself.

    Columns: prompt (its index), tokens, first_origin (whose the first token is, of
    `models.ORIGINS`; missing where that is not known), layer, head; first_token (mean weight on the
    first token), sink_rate (share of queries that give it more than 0.3), is_sink (first_token >
    0.3); previous_token (mean weight on key = query - 1); entropy (nats, mean over queries),
    normalised_entropy (mean of entropy / log of the number of keys that the query may see, 1:
    uniform); last_to_first, last_to_itself, last_to_text (the last token's weight on the user's
    text, summed; NA where it is not known whose the tokens are), last_to_carriers (the same of the
    tokens that carry the answer; NA where these are not known, of a text).

    `is_sink` is the sink of Gu et al., "When attention sink emerges in language models", arXiv
    2410.10781, with epsilon = 0.3, except that their mean has the first query in it, whose weight
    is always 1; `sink_rate` counts queries by the same threshold. Where the chat template wrote the
    first token (`first_origin`), a sink there says nothing of the text. A short prompt leaves few
    keys to attend to: compare heads on prompts of one length.
    """

    key: ClassVar = ("prompt", "layer", "head")

    @property
    def summary(self) -> pd.DataFrame:
        """The mean of every score over the prompts, one row per layer and head (`is_sink`: the
        share of prompts).
        """
        table: Frame = self.frame
        return table.groupby(["layer", "head"], as_index=False)[list(SCORES)].mean()

    def chart(self) -> Chart:
        from ostools.reporting.charts.attention import heads_chart

        return heads_chart(self)

    def findings(self) -> list[str]:
        from ostools.reporting.findings.profiles import head_scores_findings

        return head_scores_findings(self)


@measurement(
    command="attention heads",
    examples=('--prompt "Once upon a time" --out heads.png',),
    memory=["patterns"],
)
def head_scores(
    model: TransformerBridge,
    prompts: str | Prompt | Question | Sequence[str | Prompt | Question],
    *,
    position: Position | None = None,
    mitigation: Mitigation | str | None = None,
    **encoding: Unpack[EncodingOptions],
) -> HeadScores:
    """Scores of where each head looks, on one prompt or several, with the edits that are active.

    Args:
        prompts: texts, prompts, or a task's questions (`ost.tasks.questions`). A question knows the
            tokens that carry its answer.
        position: where a task's question is read, as in `collapse`. It is the last token of the
            patterns.
        mitigation: a `mitigations.Mitigation` or its name with options. The text is the one that it
            rewrites, and the patterns are those under its hooks. It has to change every prompt, or
            a logit of it, or it is refused.

    Raises `InputError` for an empty list, a prompt of one token, and patterns that are not
    finite.
    """
    is_one = isinstance(prompts, str | Prompt | Question)
    listed = [prompts] if is_one else prompts
    mitigated = MitigatedPrompts.of("head_scores", model, listed, mitigation, position)
    inputs = [
        read.task_prompt if read else raw
        for raw, read in zip(listed, mitigated.questions, strict=True)
    ]
    parameters = {
        "prompts": [getattr(raw, "text", raw) for raw in inputs],
        "threshold": SINK,
        **mitigated.provenance_entry,
        **_in_common([prompt.provenance for prompt in mitigated.prompts]),
        **read_entry(model, mitigated.questions),
    }
    ids = tuple(mitigated.prompt.ids.tolist()) if len(listed) == 1 else None
    provenance = Provenance.collect(model, ids, **parameters)
    tables: list[pd.DataFrame] = []
    with mitigated.acting(model):
        for index, (raw, prompt) in enumerate(zip(inputs, mitigated.prompts, strict=True)):
            is_question = isinstance(raw, TaskPrompt)
            carriers = carrier_positions(model, raw) if is_question else ()
            scores = pattern_scores(model, prompt, carriers)
            tables.append(_table(prompt, scores).assign(prompt=index))
    frame: Frame = pd.concat(tables, ignore_index=True).astype({"first_origin": "str"})
    names = ["prompt", "tokens", "first_origin", "layer", "head", *SCORES]
    return HeadScores(frame[names], provenance)


def _table(prompt: Prompt, scores: Mapping[str, PerHead]) -> pd.DataFrame:
    """A row a layer and head, with every score."""
    layer, head = np.indices(scores["entropy"].shape).reshape(2, -1)
    columns = {name: values.flatten().cpu().numpy() for name, values in scores.items()}
    origin = None if prompt.origins is None else prompt.origins[0]
    about = {"tokens": len(prompt.ids), "first_origin": origin, "layer": layer, "head": head}
    return pd.DataFrame(about | columns)


def _in_common(entries: Sequence[Mapping[str, object]]) -> dict[str, object]:
    return {
        name: value
        for name, value in entries[0].items()
        if all(entry.get(name) == value for entry in entries)
    }


def pattern_scores(
    model: TransformerBridge, prompt: Prompt, carriers: tuple[int, ...]
) -> dict[str, PerHead]:
    """Every score; what softmax is taken of says how many keys a query may see. `carriers`: the
    positions of the tokens that carry a question's answer.
    """
    if len(prompt.ids) < 2:
        raise InputError(
            "head_scores: expected a prompt of at least two tokens, found one: the first has no "
            "other to see"
        )
    text = tuple(place for place, origin in enumerate(prompt.origins or ()) if origin == TEXT)

    def room(scores: Tensor, layer: int | None) -> Tensor:
        return (~hidden(scores[0])).sum(-1)

    def scored(pattern: Tensor, layer: int | None) -> Mapping[str, Tensor]:
        pattern = pattern[0].double()
        # Written so that NaN fails too. 16-bit weights are each rounded; a weight that an edit cut
        # out is more than that.
        if not bool(((pattern.sum(-1) - 1).abs() < _ROUNDING).all()):
            raise InputError(
                f"head_scores: expected patterns whose rows sum to 1, found others in layer {layer}"
                ": they are not finite, or an edit of the forward pass cuts weights out "
                "(hooks.mask_scores lets the others share them)"
            )
        first_weights, last_weights = pattern[:, 1:, 0], pattern[:, -1]
        missing = last_weights.new_full((len(last_weights),), torch.nan)
        return {
            "first_token": first_weights.mean(-1),
            "sink_rate": (first_weights > SINK).double().mean(-1),
            "is_sink": first_weights.mean(-1) > SINK,
            "previous_token": pattern.diagonal(-1, dim1=1, dim2=2).mean(-1),
            "entropies": torch.special.entr(pattern[:, 1:]).sum(-1),
            "last_to_first": last_weights[:, 0],
            "last_to_itself": last_weights[:, -1],
            "last_to_text": last_weights[:, list(text)].sum(-1) if text else missing,
            "last_to_carriers": last_weights[:, list(carriers)].sum(-1) if carriers else missing,
        }

    reducers = {"scores": room, "pattern": scored}
    record, _ = captured_pass(model, prompt.ids[None], *reducers, reduce=reducers)
    layers = range(int(model.cfg.n_layers))
    scores = {
        name: torch.stack([record["pattern"][layer][name] for layer in layers])
        for name in record["pattern"][0]
    }
    entropies = scores.pop("entropies")
    most = torch.stack([record["scores"][layer] for layer in layers])[..., 1:].double().log()
    # A query that may see one key alone has no choice whose entropy could be large or small.
    normalised = torch.where(most > 0, entropies / most, torch.nan).nanmean(-1)
    return scores | {"entropy": entropies.mean(-1), "normalised_entropy": normalised}
