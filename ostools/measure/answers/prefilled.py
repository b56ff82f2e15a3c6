"""Prompts of a task with a prefilled answer line: the next token is the first of the answer itself.

Behind the bare prompt the next token is the same for every answer ("The final answer to ...").
Behind the begun line it is the answer's own, so that what the last token holds there can be
compared with what the model says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Unpack

from ostools import mitigations
from ostools.ground import InputError, Progress, TransformerBridge
from ostools.measure.answers.answers import Answer, answers, line_written
from ostools.measure.passes.precisions import Precision
from ostools.measure.position import (
    ANSWER,
    Position,
    ReadPrompt,
    cut_otherwise,
    read_at,
    split_line,
)
from ostools.measure.task_prompt import render_prompt
from ostools.mitigations import Mitigation, label
from ostools.models import EncodingOptions, Prompt, context_length
from ostools.models.tokens import token_text
from ostools.tasks import Task

SPARE = 4
"""Tokens after the longest right answer, to see that an answer ends where it should."""


def prefilled_prompts(
    model: TransformerBridge,
    form: Task,
    lengths: Sequence[int],
    seeds: Sequence[int],
    mitigation: Mitigation | None = None,
    position: Position = ANSWER,
    **encoding: Unpack[EncodingOptions],
) -> list[ReadPrompt]:
    """The prompts of all lengths and seeds up to `position`, each with its right answer; those that
    are the same tokens once.

    Raises `InputError` where all right answers are the same, where a tokenizer cuts the line before
    the right answer otherwise than before others, and for a prompt that leaves no room for its
    answer in the context.
    """
    task_prompts = [
        render_prompt(model, form, n, seed=seed, mitigation=mitigation, **encoding)
        for n in lengths
        for seed in seeds
    ]
    if mitigation is not None and position == ANSWER and task_prompts[0].counts:
        raise InputError(
            f"{label(mitigation)} asks for counts before the answer line, and here that line is "
            "begun right after the "
            "prompt: measure it with evaluate or study"
        )
    if len({prompt.key for prompt in task_prompts}) < 2:
        advice = "give it an option that draws its items, such as uniform=true, or more seeds"
        raise InputError(
            f"{form.name}: expected questions with different right answers, found that all have "
            f"{task_prompts[0].key!r}: " + (advice if not form.numeric else "give more lengths")
        )
    first_line, _ = split_line(model, task_prompts[0])
    prompt_by_ids: dict[tuple[int, ...], ReadPrompt] = {}
    for task_prompt in task_prompts:
        line, answer = split_line(model, task_prompt)
        if line != first_line:
            raise cut_otherwise(task_prompt)
        read_prompt = replace(read_at(model, task_prompt, position), answer=answer)
        prompt_by_ids.setdefault(read_prompt.ids, read_prompt)
    prompts = list(prompt_by_ids.values())
    require_room(model, prompts)
    return prompts


def require_telling_first_tokens(model: TransformerBridge, prompts: Sequence[ReadPrompt]) -> None:
    """Require that the first token of an answer tells which of the right answers it is.

    Raises `InputError` where two right answers begin with the same token (12 and 15, where digits
    are tokens): what is said of that token is said of both."""
    key_by_token: dict[int, str] = {}
    for prompt in sorted(prompts, key=lambda prompt: prompt.task_prompt.length):
        task_prompt = prompt.task_prompt
        key = key_by_token.setdefault(prompt.token, task_prompt.key)
        if key != task_prompt.key:
            raise InputError(
                f"{task_prompt.task.name}: expected right answers that begin with different "
                f"tokens, found {key} and "
                f"{task_prompt.key}, which both begin with "
                f"{token_text(model.tokenizer, prompt.token)!r}: what is said of that "
                "token is said of both. Ask for lengths whose answers differ there, such as 2 to 9"
            )


def answer_room(prompts: Sequence[ReadPrompt]) -> int:
    return max(len(prompt.answer) for prompt in prompts) + SPARE


def require_room(model: TransformerBridge, prompts: Sequence[ReadPrompt]) -> None:
    longest, context = max(prompts, key=lambda prompt: len(prompt.ids)), context_length(model)
    needed = len(longest.ids) + answer_room(prompts)
    if needed > context:
        raise InputError(
            f"{longest.task_prompt.task.name}: a prompt of {longest.task_prompt.length} items "
            f"takes {needed} tokens with the "
            f"answer, the model's context holds {context}: ask for shorter lengths"
        )


@contextmanager
def running(
    model: TransformerBridge,
    prompts: Sequence[ReadPrompt],
    precision: Precision,
    mitigation: Mitigation | None,
) -> Iterator[TransformerBridge]:
    """The model as that precision prepares it, while it rounds and the mitigation acts."""
    prepared = precision.prepared(model)
    longest = max((prompt.ids for prompt in prompts), key=len)
    with mitigations.running(prepared, mitigation), precision.running(prepared, longest):
        yield prepared


def prefilled_answers(
    prepared: TransformerBridge, prompts: Sequence[ReadPrompt], progress: Progress | None = None
) -> list[Answer]:
    """The rest of every line as the model writes it, inside `running`."""
    encoded = [Prompt.from_ids(prepared, prompt.ids) for prompt in prompts]
    stops, room = [line_written] * len(encoded), answer_room(prompts)
    return answers(prepared, encoded, max_new_tokens=room, stops=stops, progress=progress)
