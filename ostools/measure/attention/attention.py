"""Attention: what the last token attends to in every head, and every head's whole pattern reduced
to a square.

alpha_ij^(l,h) of the paper (Section 2), as the model computed it: under edits of the forward pass
the edited pattern. Attention is not influence: a weight says what a value was multiplied by, and
`sensitivity` what that meant to y_n. Cost: one forward pass; each layer's pattern is reduced as it
appears, and of a square 64 positions a side are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Unpack, cast

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from ostools import hooks, mitigations, tasks
from ostools.ground.errors import InputError
from ostools.ground.lens import TransformerBridge
from ostools.ground.names import Position
from ostools.ground.pooling import Bins, bins_of, max_pool
from ostools.ground.whole_numbers import whole_number
from ostools.measure.measurement import measurement
from ostools.measure.mitigated_prompts import posed, rewritten
from ostools.measure.passes.contexts import no_logits
from ostools.measure.position import (
    ReadPrompt,
    checked_position,
    read_at,
    read_with_next,
    require_prompt_end,
)
from ostools.measure.prompts import as_prompt, token_columns
from ostools.measure.task_prompt import encoding_of, item_positions, render_prompt, render_question
from ostools.mitigations import Mitigation
from ostools.models import Prompt
from ostools.models.precision.torch_state import float32_products
from ostools.models.tokens import EncodingOptions
from ostools.results import Chart, Frame, Provenance, Result
from ostools.results.table_head import TableHead
from ostools.tasks import Task
from ostools.tasks.questions import Question, question

ATTENTION = "attention"
"""What tables and charts call the last token's weights, mean over layers and heads."""
SIDE = 64
"""Most rows and columns of a square: longer prompts are max-pooled."""


@dataclass(frozen=True, eq=False)
class Attention(Result):
    """Attention weights of the last token: one row is one layer, head and token attended to.

    Columns: layer, head, position, token_id, token, origin (whose it is, of `models.ORIGINS`), item
    (of the task's sequence; missing for other tokens, and where that is not known), weight (of the
    last token's row; a head's sum to 1).

    squares: the whole patterns, positions max-pooled into `bins` (start, end, end excluded), of
    which the last holds the last token alone: the last row of a square is its own.
    """

    tables: ClassVar = (TableHead(columns="layer head token position weight", greatest="weight"),)

    squares: Float[Tensor, "layer head bin_query bin_key"]
    bins: Bins

    @property
    def tokens(self) -> tuple[str, ...]:
        return tuple(self.frame["token"].iloc[: self.bins[-1][1]])

    @property
    def origins(self) -> tuple[str, ...] | None:
        """Origin of each token, of `models.ORIGINS`; None where that is not known."""
        column: Any = (
            self.frame["origin"].iloc[: self.bins[-1][1]] if "origin" in self.frame else None
        )
        return None if column is None or column.isna().any() else tuple(column)

    @property
    def last(self) -> Float[Tensor, "layer head key"]:
        weights = torch.tensor(self.frame["weight"].to_numpy())
        return weights.reshape(*self.squares.shape[:2], self.bins[-1][1])

    def view(self) -> Any:
        """The patterns of all heads to click through.

        Shows itself in a notebook (about 2.3 MB that are stored with it) and has `.save("x.html")`;
        neither asks the network for anything.
        """
        from ostools.reporting.charts.heads_view import AttentionView

        return AttentionView(self)

    def chart(self) -> Chart:
        from ostools.reporting.charts.attention import attention_chart

        return attention_chart(self)

    def findings(self) -> list[str]:
        from ostools.reporting.charts.attention import attention_findings

        return attention_findings(self)


@measurement(
    command="attention",
    examples=(
        '--prompt "Can you copy the following number?1111" --out x.html',
        "--task copy-last --length 12",
    ),
    memory=["patterns"],
    in_chunks=True,
)
def attention(
    model: TransformerBridge,
    prompt: str | Prompt | Question | None = None,
    *,
    task: Task | str | None = None,
    length: int | None = None,
    seed: int = 0,
    mitigation: Mitigation | str | None = None,
    position: Position | None = None,
    **encoding: Unpack[EncodingOptions],
) -> Attention:
    """The last token's attention weights in every layer and head, and every pattern, reduced to at
    most 64 x 64.

    Args:
        prompt: a text, its tokens, or a task's question.
        task: in place of a prompt, a `tasks.Task` or its name with options. It is then known which
            tokens belong to which item, whatever a mitigation puts between the items.
        length: number of items of the task's sequence.
        seed: seed of the sequence, if the task draws one.
        mitigation: a `mitigations.Mitigation` or its name with options. It rewrites the text. It is
            active in the forward pass, and verified there. `status` in the provenance says whether
            it changed anything: active, inactive or none.
        position: the token of a task's prompt whose weights are read, as in `collapse`: "answer"
            (the default), "prompt-end" or "last-item". It is the last token of the patterns.

    Raises `InputError` for a prompt together with a task, and for neither; for weights that are not
    finite; for a mitigation that cannot be applied to what was given (one that inserts between
    items, to a text that is not a task's; one that rewrites text, to tokens); and for a prompt
    longer than the context.
    """
    seed, mitigation_object = whole_number("seed", seed), mitigations.optional(mitigation)
    _require_one(prompt is not None, task, length)
    if task is not None and length is not None:
        prompt = render_question(model, question(tasks.task(task), length, seed=seed), **encoding)
    read, items, tokens_changed = _read_prompt(model, prompt, mitigation_object, position)
    encoded_prompt = read.prompt(model) if isinstance(read, ReadPrompt) else read
    last, squares, bins = _captured(model, encoded_prompt, mitigation_object)
    status = "none"
    if mitigation_object is not None:
        acts = tokens_changed or mitigations.acts(model, mitigation_object, encoded_prompt.ids)
        status = "active" if acts else "inactive"
    about = {"mitigation": mitigations.label(mitigation_object), "status": status, "side": SIDE}
    if isinstance(read, ReadPrompt):
        with mitigations.running(model, mitigation_object):
            about |= read_with_next(model, read)
        asked = read.task_prompt
        about |= {"task": tasks.label(asked.task), "length": asked.length, "seed": asked.seed}
    about |= {"measurement": "attention", **encoded_prompt.provenance}
    provenance = Provenance.collect(model, tuple(encoded_prompt.ids.tolist()), **about)
    columns = token_columns(encoded_prompt).assign(item=pd.array(items, dtype="Int64"))
    layers, heads, pos = last.shape
    frame: Frame = pd.concat([columns] * (layers * heads), ignore_index=True)
    frame.insert(0, "layer", np.repeat(np.arange(layers), heads * pos))
    frame.insert(1, "head", np.tile(np.repeat(np.arange(heads), pos), layers))
    return Attention(frame.assign(weight=last.flatten().numpy()), provenance, squares, bins)


def _read_prompt(
    model: TransformerBridge,
    prompt: str | Prompt | Question | None,
    mitigation: Mitigation | None,
    position: str | None,
) -> tuple[Prompt | ReadPrompt, list[int | None], bool]:
    """The prompt up to the token that is read, the item of each token, and whether the mitigation
    changed a token.
    """
    if isinstance(prompt, Question):
        task_prompt, _ = posed(model, prompt, mitigation)
        encoding, plain = encoding_of(task_prompt.prompt), None
        if task_prompt.rewritten:
            plain = render_prompt(
                model, prompt.task, prompt.length, seed=prompt.seed, **encoding
            ).prompt
        read = read_at(model, task_prompt, checked_position(position))
        items = [*item_positions(model, task_prompt), *[None] * read.line][: len(read.ids)]
        return read, items, _tokens_differ(task_prompt.prompt, plain)
    require_prompt_end(position, "a prompt without a task")
    original = text = cast("str | Prompt", prompt)
    if mitigation is not None:
        text, _ = rewritten("attention", model, original, mitigation, "a task and its length")
    encoded = as_prompt(model, text)
    plain = None if text is original else as_prompt(model, original)
    return encoded, [None] * len(encoded.ids), _tokens_differ(encoded, plain)


def _tokens_differ(prompt: Prompt, plain: Prompt | None) -> bool:
    """Whether a rewritten text has other tokens: a chat template may strip what was added. `plain`:
    None if not rewritten.
    """
    return plain is not None and not torch.equal(prompt.ids, plain.ids)


def _require_one(has_prompt: bool, task: Task | str | None, length: int | None) -> None:
    """Raises `InputError` for a prompt together with a task, for neither, and for a task without
    its length.
    """
    if has_prompt == (task is not None) or (task is None) != (length is None):
        raise InputError(
            "attention: expected a prompt, or a task with its length; for example task='copy-last', length=12"
        )


def _captured(
    model: TransformerBridge, prompt: Prompt, mitigation: Mitigation | None
) -> tuple[Float[Tensor, "layer head key"], Float[Tensor, "layer head bin_query bin_key"], Bins]:
    bins = bins_of(len(prompt.ids), SIDE)

    def reduce(pattern: Tensor, layer: int | None) -> tuple[Tensor, Tensor]:
        pattern = pattern[0].float().cpu()
        return pattern[:, -1], max_pool(max_pool(pattern, bins), bins, dim=-2)

    device = next(model.parameters()).device
    # The mitigation outside: what it made of a pattern is what is captured.
    with (
        torch.no_grad(),
        float32_products(),
        mitigations.running(model, mitigation),
        hooks.capture(model, "pattern", reduce=reduce) as record,
    ):
        model(prompt.ids[None].to(device), use_cache=False, logits_to_keep=no_logits(model))
    layer_patterns = [record["pattern"][layer] for layer in sorted(record["pattern"])]
    last, squares = (torch.stack(tensors) for tensors in zip(*layer_patterns, strict=True))
    if not bool(torch.isfinite(squares).all()):
        raise InputError(
            "the attention weights on this prompt are not finite: the model's weights or its dtype are broken"
        )
    return last, squares, bins
