"""Prompts of a task with a prefilled answer line: the next token is the first of the answer itself.

Behind the bare prompt the next token is the same for every answer ("The final answer to ...").
Behind the begun line it is the answer's own, so that what the last token holds there can be
compared with what the model says.
"""

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
        raise InputError(
            f"{form.name}: expected questions with different right answers, found that all have "
            f"{task_prompts[0].key!r}: give more lengths or seeds, or an option that draws its "
            "items, such as uniform=true"
        )
    lines = [split_line(model, task_prompt) for task_prompt in task_prompts]
    prompt_by_ids: dict[tuple[int, ...], ReadPrompt] = {}
    for task_prompt, (line, answer) in zip(task_prompts, lines, strict=True):
        if line != lines[0][0]:
            raise cut_otherwise(task_prompt)
        read_prompt = replace(read_at(model, task_prompt, position), answer=answer)
        prompt_by_ids.setdefault(read_prompt.ids, read_prompt)
    prompts = list(prompt_by_ids.values())
    longest, context = max(prompts, key=lambda prompt: len(prompt.ids)), context_length(model)
    if (needed := len(longest.ids) + answer_room(prompts)) > context:
        raise InputError(
            f"{form.name}: a prompt of {longest.task_prompt.length} items takes {needed} tokens "
            f"with the answer, the model's context holds {context}: ask for shorter lengths"
        )
    return prompts


def answer_room(prompts: Sequence[ReadPrompt]) -> int:
    return max(len(prompt.answer) for prompt in prompts) + SPARE


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
