"""Sensitivity of the answer to each part of prompt and reasoning: Theorem B.5's left side along a
chain of thought.

The theorem's input is "v_1 ... v_n (including CoT)": y_n is the last token's representation after
prompt and reasoning, where the answer is about to be written, and every earlier token, the model's
own reasoning too, has its d y_n / d v_i.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import Any, Unpack

import pandas as pd
import torch

import ostools as ost
from ostools.ground.errors import InputError
from ostools.ground.lens import TransformerBridge
from ostools.ground.names import Linearisation, Method, distinct, known_norm
from ostools.ground.progress import Progress
from ostools.ground.whole_numbers import whole_number
from ostools.measure import TaskPrompt, item_positions, render_prompt
from ostools.measure.answers.answers import answers
from ostools.measure.answers.reading import HAS_ANSWER, reader_of
from ostools.measure.position import line_ids
from ostools.models import EncodingOptions, Prompt, context_length
from ostools.models.tokenizer_calls import decoded
from ostools.models.tokens import offsets, token_text
from ostools.paper.drawn_result import PaperResult
from ostools.results import Column, Frame, Provenance
from ostools.tasks import AppendixTask, Task
from ostools.tasks.appendix_c import few_shot
from ostools.tasks.base import seeds_of

NORMS = ("operator", "frobenius")
ITEMS, WORDS, EXAMPLES = "items of the sequence", "other words of the prompt", "few-shot examples"
REASONING, LINE, FRAME = "reasoning", "begun answer line", "BOS and template"
PARTS = (FRAME, WORDS, ITEMS, EXAMPLES, REASONING, LINE)
"""The parts that a token can belong to. FRAME: tokens that stand for no character of what the user
typed.
"""
BY_MODEL, LINE_APPENDED, GIVEN_TEXT = (
    "written by the model",
    "begun behind what the model wrote",
    "given",
)


@dataclass(frozen=True, eq=False)
class ChainOfThought(PaperResult):
    """`frame`: the rows of `Sensitivity` on the whole sequence, with `part` (of `PARTS`).

    `summary`: one row a linearisation, norm and part. Columns: linearisation, norm (operator |
    frobenius), part, tokens, total (sum of the norms of its tokens), share (of the sum over all
    tokens), mean (per token). A part without a token has no row. Sums of norms say where how much
    is felt; they are no norm of the part as a whole. Of a sketch there are Frobenius norms alone.
    """

    summary: pd.DataFrame


@ost.measure.measurement(
    command="evaluate chain-of-thought",
    examples=(
        '--task count-ones:mode=cot-zero-shot --length 8 --reasoning "11111 and 111" --out '
        "chain.png",
    ),
    defaults={"task": "count-ones:mode=cot-few-shot", "length": "12"},
    lines_of=(ost.sensitivity,),
    memory=["answers", "rows"],
)
def chain_of_thought(
    model: TransformerBridge,
    task: Task | str,
    length: int,
    *,
    seed: int = 0,
    reasoning: str | None = None,
    linearisations: Linearisation | Sequence[Linearisation] = ("full",),
    method: Method = "auto",
    max_new_tokens: int = 256,
    max_memory: int | None = None,
    progress: Progress | None = None,
    **encoding: Unpack[EncodingOptions],
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
        progress: called as progress(done, total), in percent.

    How the question is encoded: `EncodingOptions`.

    Raises `InputError` for what `sensitivity` refuses, reasoning that contains the answer line or
    thoughts that are not closed, a line that cannot be begun in tokens, and a whole that is longer
    than the context. Source: arXiv 2406.04267, Theorem B.5; docs/theory.md 2.
    """
    form = ost.tasks.task(task)
    whole_number("length", length, 1)
    distinct("linearisations", linearisations)  # refused before anything is answered
    whole_number("max_new_tokens", max_new_tokens, 1)
    (seed,) = seeds_of(form, [seed])
    task_prompt = render_prompt(model, form, length, seed=seed, **encoding)
    text = with_reasoning(model, task_prompt, reasoning, max_new_tokens)
    result = ost.sensitivity(
        model,
        text.prompt,
        linearisations=linearisations,
        method=method,
        max_memory=max_memory,
        seed=seed,
        progress=progress,
    )
    places: Column = result.frame["position"]
    frame: Frame = result.frame.assign(part=places.map(dict(enumerate(text.parts))))
    parameters: dict[str, object] = {
        **result.provenance.parameters,
        "measurement": "chain-of-thought",
        **{"task": ost.tasks.label(form), "length": length, "seed": seed, "key": task_prompt.key},
        **{"chat": task_prompt.chat, **task_prompt.prompt.provenance},
        **{"reasoning": text.reasoning, "reasoning_source": text.source},
        "max_new_tokens": max_new_tokens if reasoning is None else None,
        **_answer(model, text),
    }
    provenance = Provenance.collect(model, result.provenance.token_ids, **parameters)
    return ChainOfThought(frame, provenance, _summary(frame))


def _summary(frame: Frame) -> pd.DataFrame:
    """Sums, shares of the whole and means of the norms, a row each linearisation, norm and part."""
    rows = []
    for linearisation, group in frame.groupby("linearisation", sort=False):
        for norm in NORMS if known_norm(group["method"]) == "operator" else ("frobenius",):
            norms = group[f"{norm}_norm"]
            norm_sum = float(norms.sum())
            for part in PARTS:
                values = norms[group["part"] == part]
                total, count = float(values.sum()), len(values)
                share = total / norm_sum if norm_sum else math.nan
                if count:
                    rows.append((linearisation, norm, part, count, total, share, total / count))
    names = ["linearisation", "norm", "part", "tokens", "total", "share", "mean"]
    return pd.DataFrame(rows, columns=pd.Index(names))


def _answer(model: TransformerBridge, text: ReasonedPrompt) -> dict[str, object]:
    """The token that the model writes next, the right one, and how likely that is."""
    with torch.no_grad():
        logits: Any = model(
            text.prompt.ids[None].to(next(model.parameters()).device), use_cache=False
        )
    log_p = torch.log_softmax(logits[0, -1].double(), dim=-1)
    top_token = int(log_p.argmax())
    return {
        "answer_token": token_text(model.tokenizer, top_token),
        "right_token": token_text(model.tokenizer, text.answer_token),
        "first_token_right": top_token == text.answer_token,
        "right_token_probability": float(log_p[text.answer_token].exp()),
    }


@dataclass(frozen=True)
class ReasonedPrompt:
    """Prompt, reasoning and answer line up to the token before the answer.

    prompt: all ids. parts: the part of every token. reasoning: its text.
    source: whose the reasoning and the begun line are. answer_token: the first token of the right
        answer after it.
    """

    prompt: Prompt
    parts: tuple[str, ...]
    reasoning: str
    source: str
    answer_token: int


def with_reasoning(
    model: TransformerBridge, task_prompt: TaskPrompt, reasoning: str | None, max_new_tokens: int
) -> ReasonedPrompt:
    """The question with reasoning (None: the model's own, greedy) and with the answer line begun.

    Where the model wrote an answer line, the sequence ends where the one that is read
    (`measure.answers.reading`) comes to the
    answer: every token is the model's own, and what a model that goes on asks itself next is not in
    it. Where it did not, the line is begun after all that it wrote. A task whose answer line is the
    bare answer gets no reasoning of the model's: what it writes would be the answer. Raises
    `InputError` for reasoning that holds the line, where the line cannot be begun in tokens, the
    whole does not fit the context, and where it is not known which tokens are the items.
    """
    line_start = opening(task_prompt).strip()
    if reasoning is not None and line_start and line_start in reasoning:
        raise InputError(
            f"reasoning: expected it without the answer line, found {line_start!r} in it: leave "
            "that line out"
        )
    ids: list[int] | None = None
    suffix, source = reasoning or "", GIVEN_TEXT
    if reasoning is None and opening(task_prompt):
        (model_answer,) = answers(model, [task_prompt.prompt], max_new_tokens=max_new_tokens)
        answer_ids = model_answer.ids[:-1] if model_answer.ended == "eos" else model_answer.ids
        ids, suffix, source = _up_to_the_answer(model, task_prompt, answer_ids, model_answer.text)
    if reader_of(task_prompt).still_thinking(suffix):
        raise InputError(
            f"{task_prompt.task.name}: expected thoughts that are closed before the answer line, "
            f"found {suffix[-40:]!r}: raise max_new_tokens, close them in `reasoning`, or ask "
            "without the chat template"
        )
    prefix_ids, answer_token = _prefill_ids(model, task_prompt, suffix)
    ids = list(prefix_ids) if ids is None else ids
    length, context = len(task_prompt.prompt.ids) + len(ids), context_length(model)
    if length > context:
        raise InputError(
            f"expected at most {context} tokens (the model's context), found {length} with "
            "reasoning and answer line: shorten the reasoning or the sequence"
        )
    prompt = Prompt.from_ids(model, [*task_prompt.prompt.ids.tolist(), *ids])
    parts = (*_prompt_parts(model, task_prompt), *_reasoning_parts(model, task_prompt, ids))
    return ReasonedPrompt(prompt, parts, suffix.strip(), source, answer_token)


def opening(task_prompt: TaskPrompt) -> str:
    """The words of the answer line before the answer."""
    return task_prompt.task.answer_line("\ue000").partition("\ue000")[0].rstrip()


def _up_to_the_answer(
    model: TransformerBridge, task_prompt: TaskPrompt, answer_ids: Sequence[int], text: str
) -> tuple[list[int] | None, str, str]:
    """The model's own tokens up to the answer, its reasoning, and whose the begun line is; no
    tokens where it began none.
    """
    reader = reader_of(task_prompt)
    reading = reader.read(text, "eos")
    if reading.kind != HAS_ANSWER or reader.form is None:
        return None, text, LINE_APPENDED
    line_start = text.find(
        reading.line, reader.answer_start(text)
    )  # thoughts may hold the line too
    match = reader.form.match(reading.line)
    if line_start < 0 or match is None:
        return None, text, LINE_APPENDED
    end = line_start + match.start("answer")
    end += len(text[end:]) - len(text[end:].lstrip())
    _, ends = _text_after(model, task_prompt, answer_ids)
    before_answer = takewhile(lambda pair: pair[1] <= end, zip(answer_ids, ends, strict=True))
    return [token for token, _ in before_answer], text[:line_start], BY_MODEL


def _prefill_ids(
    model: TransformerBridge, task_prompt: TaskPrompt, reasoning: str
) -> tuple[tuple[int, ...], int]:
    """The tokens of reasoning and begun line, up to the first that depends on the answer; and that
    of the right one.
    """
    between = task_prompt.task.lead if reasoning.strip() or not task_prompt.chat else ""
    text = reasoning.rstrip() + between
    first_line, second_line, right_line = (
        line_ids(model, task_prompt.prompt, text + task_prompt.task.answer_line(key))
        for key in ("1", "2", task_prompt.key)
    )
    alike = takewhile(lambda pair: pair[0] == pair[1], zip(first_line, second_line, strict=False))
    same = len(list(alike))
    if not same or right_line[:same] != first_line[:same] or len(right_line) == same:
        raise InputError(
            f"{task_prompt.task.name}: expected an answer line that begins the same for every "
            "answer, found that this tokenizer cuts it otherwise before different ones: choose a "
            "task whose answer is a number"
        )
    return first_line[:same], right_line[same]


def _text_after(
    model: TransformerBridge, task_prompt: TaskPrompt, ids: Sequence[int]
) -> tuple[str, list[int]]:
    """Text of the tokens after the prompt, and for each how many of its characters are there once
    it is read.
    """
    tokenizer: Any = model.tokenizer
    anchor = task_prompt.prompt.ids[-8:].tolist()
    base = len(decoded(tokenizer, anchor))
    lengths = [
        len(decoded(tokenizer, [*anchor, *ids[:count]])) - base for count in range(1, len(ids) + 1)
    ]
    return decoded(tokenizer, [*anchor, *ids])[base:], list(accumulate(lengths, max, initial=0))[1:]


def _reasoning_parts(
    model: TransformerBridge, task_prompt: TaskPrompt, ids: Sequence[int]
) -> list[str]:
    """The part of every token after the prompt."""
    text, ends = _text_after(model, task_prompt, ids)
    line_start = opening(task_prompt)
    start = text.lower().rfind(line_start.lower()) if line_start else len(text)
    start = len(text[: max(start, 0)].rstrip())  # the line's end before it is the answer line's own
    return [REASONING if end <= start else LINE for end in ends]


def _prompt_parts(model: TransformerBridge, task_prompt: TaskPrompt) -> list[str]:
    """The part of every token of the prompt, by the characters that it comes from."""
    request = task_prompt.text.strip()
    start = (task_prompt.prompt.text or "").find(request)
    items = item_positions(model, task_prompt)
    if start < 0 or all(item is None for item in items):
        raise InputError(
            f"{task_prompt.task.name}: expected the sequence once in the prompt, in tokens of "
            "known characters; which tokens are its items is not known"
        )
    examples = _examples(task_prompt)
    low = start + request.find(examples)
    parts = []
    for (first, last), item in zip(offsets(model, task_prompt.prompt), items, strict=True):
        part = EXAMPLES if low <= first < low + len(examples) else WORDS
        part = part if item is None else ITEMS
        is_typed = first < last and last > start and first < start + len(request)
        parts.append(part if is_typed else FRAME)
    return parts


def _examples(task_prompt: TaskPrompt) -> str:
    """The few-shot examples in the text, without the request before them."""
    task = task_prompt.task
    if not isinstance(task, AppendixTask) or task.mode != "cot-few-shot":
        return ""
    return few_shot(task.name, task.tidy).partition("\n")[2]
