"""Prompts of a command: texts or token ids, or a task's question."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ostools.cli.commands import Command
from ostools.ground.errors import InputError

if TYPE_CHECKING:
    from ostools.ground.lens import TransformerBridge
    from ostools.models import Prompt
    from ostools.tasks.questions import Question

Value: TypeAlias = "str | tuple[int, ...] | Question"
"""A prompt as a user gives it: a text, its token ids, or a task's question."""


def takes_question(command: Command) -> bool:
    """Whether the prompt may be a task's question, given by --task and --length."""
    has_task = command.of_kind("task", "pairs")
    return not has_task and any(prompt.question for prompt in command.of_kind("prompt"))


def read_prompts(command: Command, values: Mapping[str, Any]) -> Sequence[Value]:
    """The prompts of --prompt and --ids, or of --task and --length where the prompt may be a
    question; none where none is given and none is needed.

    Raises `InputError` for none or several of the options.
    """
    option = _prompt_option(command, values)
    if option == "task":
        from ostools.tasks.questions import questions

        seeds = [values.get("task_seed") or 0]
        return questions(values["task"], lengths=[values["length"]], seeds=seeds)
    texts = values[option] if option else ()
    texts = [texts] if isinstance(texts, str) else texts
    return [parse_ids(text) for text in texts] if option == "ids" else list(texts)


def _prompt_option(command: Command, values: Mapping[str, Any]) -> str | None:
    """The one option that gives the prompts; None where none is given and none is needed."""
    parameters, is_question = command.of_kind("prompt"), takes_question(command)
    ways = ["prompt", "ids", *["task"] * is_question]
    used = [name for name in ways if values.get(name)] * bool(parameters)
    if len(used) > 1 or (not used and any(parameter.required for parameter in parameters)):
        expected = " or ".join(f"--{name}" for name in ways)
        raise InputError(f"expected {expected}, found {' and '.join(used) or 'none of them'}")
    if is_question and (used == ["task"]) != (values.get("length") is not None):
        raise InputError(
            "expected --task NAME and --length N, a question of so many items, found one"
        )
    return used[0] if used else None


def in_model(
    model: TransformerBridge, values: Sequence[Value]
) -> str | Prompt | Question | list[str | Prompt | Question]:
    """A prompt as a measurement takes it where there is one, else a list of them."""
    from ostools.models import Prompt

    prompts = [
        Prompt.from_ids(model, value) if isinstance(value, tuple) else value for value in values
    ]
    return prompts[0] if len(prompts) == 1 else prompts


def parse_ids(text: str) -> tuple[int, ...]:
    """Whole numbers with commas or blanks between them, in brackets or without."""
    words = re.sub(r"[,\s]+", " ", text.strip().removeprefix("[").removesuffix("]")).strip()
    if not re.fullmatch(r"\d{1,9}( \d{1,9})*", words, re.ASCII):
        raise InputError(f"--ids {text[:60]!r}: expected token ids such as 2,40,50")
    return tuple(map(int, words.split()))
