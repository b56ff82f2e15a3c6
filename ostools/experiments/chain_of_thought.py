"""Sensitivity of the answer to each part of prompt and reasoning: Theorem B.5's left side along a chain of thought.

The theorem's input is "v_1 ... v_n (including CoT)": y_n is the last token's representation after prompt and reasoning, where
the answer is about to be written, and every earlier token, the model's own reasoning too, has its d y_n / d v_i.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from transformer_lens.model_bridge import TransformerBridge

from ostools import tasks
from ostools.experiments.reasoned_prompt import PARTS, ReasonedPrompt, with_reasoning
from ostools.ground.names import checked_names, known_norm
from ostools.ground.progress import Progress
from ostools.ground.whole_numbers import whole_number
from ostools.measure.answers.answers import require_limit
from ostools.measure.answers.evaluate import evaluate_memory
from ostools.measure.jacobian.memory import sensitivity_memory
from ostools.measure.jacobian.routes import LINEARISATIONS
from ostools.measure.jacobian.sensitivity import sensitivity
from ostools.measure.measurement import measurement
from ostools.measure.task_prompt import render_prompt
from ostools.measure.unloaded import Unloaded
from ostools.models.tokens import token_text
from ostools.results import Frame, Provenance, Result
from ostools.tasks import Task
from ostools.tasks.base import seeds_of

NORMS = ("operator", "frobenius")


@dataclass(frozen=True, eq=False)
class ChainOfThought(
    Result, chart="positions:chain_of_thought_chart", findings=("charts.positions:chain_of_thought_findings",)
):
    """`frame`: the rows of `Sensitivity` on the whole sequence, with `part` (of `PARTS`).

    `summary`: one row a linearisation, norm and part. Columns: linearisation, norm (operator | frobenius), part, tokens, total
    (sum of the norms of its tokens), share (of the sum over all tokens), mean (per token). A part without a token has no row.
    Sums of norms say where how much is felt; they are no norm of the part as a whole. Of a sketch there are Frobenius norms
    alone.
    """

    summary: pd.DataFrame


@measurement(
    command="evaluate chain-of-thought",
    examples=('--task count-ones:mode=cot-zero-shot --length 8 --reasoning "11111 and 111" --out chain.png',),
    defaults={"task": "count-ones:mode=cot-few-shot", "length": "12"},
    lines_of=("measure.jacobian.sensitivity:sensitivity",),
    memory="experiments.chain_of_thought:chain_of_thought_memory",
)
def chain_of_thought(
    model: TransformerBridge,
    task: Task | str,
    length: int,
    *,
    seed: int = 0,
    reasoning: str | None = None,
    linearisations: Sequence[str] = ("full",),
    method: str = "auto",
    max_new_tokens: int = 256,
    max_memory: int | None = None,
    chat: bool | None = None,
    progress: Progress | None = None,
) -> ChainOfThought:
    """Norms ||d y_n / d v_i|| of a question, its reasoning and the begun answer line, by part
    (Theorem B.5).

    n is the last token before the answer. Its representation chooses the answer's first token.

    Args:
        task: a `tasks.Task`, or its name with options: "count-ones:mode=cot-few-shot".
        length: number of items.
        seed: seed of the sequence, if the task draws one, and of an estimate.
        reasoning: reasoning in place of what the model writes; "" for none. None: the model's own,
            greedy, up to the answer; where it comes to none, the answer line is begun after it.
        linearisations: as in `ostools.sensitivity`.
        method: as in `ostools.sensitivity`.
        max_memory: as in `ostools.sensitivity`.
        max_new_tokens: longest reasoning and answer of the model's own, in tokens.
        chat: whether the prompt is a user's turn in the tokenizer's chat template; None: if it has one.
        progress: called as progress(done, total), in percent.

    Raises `InputError` for what `sensitivity` refuses, reasoning that contains the answer line or
    thoughts that are not closed, a line that cannot be begun in tokens, and a whole that is longer
    than the context. Source: arXiv 2406.04267, Theorem B.5; docs/theory.md 2.
    """
    form = tasks.task(task)
    whole_number("length", length, 1)
    names = checked_names("linearisation", linearisations, LINEARISATIONS)
    require_limit(max_new_tokens)
    (seed,) = seeds_of(form, [seed])
    task_prompt = render_prompt(model, form, length, seed=seed, chat=chat)
    text = with_reasoning(model, task_prompt, reasoning, max_new_tokens)
    options: dict[str, Any] = {"linearisations": names, "method": method, "max_memory": max_memory}
    result = sensitivity(model, text.prompt, **options, seed=seed, progress=progress)
    places: Any = result.frame["position"]
    frame = result.frame.assign(part=places.map(dict(enumerate(text.parts))))
    parameters: dict[str, Any] = {
        **result.provenance.parameters,
        "measurement": "chain-of-thought",
        **{"task": tasks.label(form), "length": length, "seed": seed, "key": task_prompt.key},
        **{"chat": task_prompt.chat, **task_prompt.prompt.provenance},
        **{"reasoning": text.reasoning, "reasoning_source": text.source},
        "max_new_tokens": max_new_tokens if reasoning is None else None,
        **_answer(model, text),
    }
    provenance = Provenance.collect(model, result.provenance.token_ids, **parameters)
    return ChainOfThought(frame, provenance, _summary(frame))


def _summary(frame: Frame) -> pd.DataFrame:
    """Sums, shares of the whole and means of the norms, a row each linearisation, norm and part."""
    rows: list[dict[str, Any]] = []
    for linearisation, group in frame.groupby("linearisation", sort=False):
        for norm in NORMS if known_norm(group["method"]) == "operator" else ("frobenius",):
            norms = group[f"{norm}_norm"]
            norm_sum = float(norms.sum())
            for part in PARTS:
                own = norms[group["part"] == part]
                total = float(own.sum())
                row = {"linearisation": linearisation, "norm": norm, "part": part, "tokens": len(own), "total": total}
                row |= {"share": total / norm_sum if norm_sum else math.nan}
                rows += [row | {"mean": total / len(own)}] if len(own) else []
    return pd.DataFrame(rows)


def _answer(model: TransformerBridge, text: ReasonedPrompt) -> dict[str, Any]:
    """The token that the model writes next, the right one, and how likely that is."""
    with torch.no_grad():
        logits: Any = model(text.prompt.ids[None].to(next(model.parameters()).device), use_cache=False)
    log_p = torch.log_softmax(logits[0, -1].double(), dim=-1)
    top_token = int(log_p.argmax())
    return {
        "answer_token": token_text(model.tokenizer, top_token),
        "right_token": token_text(model.tokenizer, text.answer_token),
        "first_token_right": top_token == text.answer_token,
        "right_token_probability": float(log_p[text.answer_token].exp()),
    }


def chain_of_thought_memory(
    model: Unloaded,
    task: Task | str,
    length: int,
    *,
    linearisations: Sequence[str] = ("full",),
    method: str = "auto",
    max_new_tokens: int = 256,
    chat: bool | None = None,
) -> int:
    """Bytes of the reasoning, and of the Jacobians of the prompt with its longest reasoning."""
    answers = evaluate_memory(model, task, [length], max_new_tokens=max_new_tokens, chat=chat)
    pos = model.longest(task, [length], chat=chat).tokens + max_new_tokens
    return max(answers, sensitivity_memory(model, pos, linearisations=linearisations, method=method))
