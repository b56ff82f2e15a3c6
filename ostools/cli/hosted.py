"""Models that run elsewhere: `ostools evaluate prompts` writes the prompts out, and the result on
the answers is read from a file, or asked of a server."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ostools.cli import terminal
from ostools.cli.commands import Command
from ostools.cli.terminal import GLOBALS
from ostools.ground import InputError

if TYPE_CHECKING:
    from ostools.mitigations import Mitigation
    from ostools.results import Result
    from ostools.tasks import Question, Task


def prompts(
    *,
    task: Task | str | None = None,
    lengths: Sequence[int] | None = None,
    seeds: Sequence[int] | None = None,
    mitigation: Mitigation | str | None = None,
    figure: Literal["2", "3", "4", "6", "7", "all"] | None = None,
    out: Path | None = None,
) -> None:
    """Write every prompt of a task or figure with its id, for a model that runs elsewhere.

    One JSON object a line. Send `prompt` as it stands; answer with {"id": ..., "text": ...}, one
    object a line, and read the answers by `ostools evaluate --answers` with the same options, or by
    `ostools reproduce figure N --answers`.

    Args:
        lengths: numbers of items; without it 1:64, or those of the figure.
        seeds: one sequence for each, of a task that draws its sequence; without it 0.
        figure: all prompts of that figure, instead of one task's; all: those of 'ostools reproduce
            --answers'.
        out: a .jsonl file; else stdout.
    """
    from ostools.results import checked_output, write_atomically
    from ostools.tasks.questions import prompts_jsonl

    if out is not None:
        checked_output(out, (".jsonl",), option="--out")
    options = {"task": task, "mitigation": mitigation, "lengths": lengths, "seeds": seeds}
    selection = {name: value for name, value in options.items() if value is not None}
    if figure is None:
        selection = {"task": "count-ones", "lengths": range(1, 65)} | selection
    elif used := [name for name in selection if figure == "all" or name in ("task", "mitigation")]:
        raise InputError(f"--figure {figure} has a --{used[0]} of its own: leave it out")
    text = prompts_jsonl(_questions(selection, figure))
    if out is None:
        sys.stdout.write(text)
    else:
        write_atomically(out, lambda part: part.write_text(text, "utf-8"))
        terminal.tell_written(out)


def hosted_result(
    command: Command, arguments: Mapping[str, Any], values: Mapping[str, Any]
) -> Result | None:
    """The result on answers that a model gave elsewhere; None where a model is to be loaded.

    values: of all options, by name. Raises `InputError` for options that only a model that is
    loaded here has: they would be ignored.
    """
    file, endpoint, name = (values.get(option) for option in ("answers", "endpoint", "model"))
    if file is None and endpoint is None:
        return None
    if file is None or (endpoint is not None and name is None):
        raise InputError(
            "--endpoint: expected --answers FILE too, where the answers are kept, and --model "
            "NAME, the model's name there"
        )
    from ostools.measure import ask_endpoint, hosted_evaluation, read_answers

    selection, most = _hosted_options(command, arguments, endpoint)
    is_figure = "task" not in command.of_questions
    questions = _questions(selection, str(command.fixed.get("number", 2)) if is_figure else None)
    if endpoint is None:
        answers = read_answers(file, questions, model=name)
    else:
        with terminal.progress("asking") as progress:
            answers = ask_endpoint(
                endpoint, str(name), questions, file, max_tokens=most, progress=progress
            )
    if is_figure:
        return command.run(answers, **selection, **command.fixed)
    return hosted_evaluation(answers)


def _hosted_options(
    command: Command, arguments: Mapping[str, Any], endpoint: str | None
) -> tuple[dict[str, Any], int | None]:
    """The options that select the questions, and the most tokens of a server's answer."""
    selection = {key: value for key, value in arguments.items() if key in command.of_questions}
    of_command = {*selection, *command.defaults, *command.fixed}
    options = {key: value for key, value in arguments.items() if key not in of_command}
    most = None if endpoint is None else options.pop("max_new_tokens", None)
    used = [f"--{key.replace('_', '-')}" for key in options] + GLOBALS.of_a_loaded_model
    if used:
        raise InputError(
            f"{used[0]} is of a model that is loaded here: leave it out with --answers"
        )
    return selection, most


def _questions(selection: Mapping[str, Any], figure: str | None) -> list[Question]:
    """The questions of a task, or of one of the paper's figures; "all": those of all claims."""
    if figure is None:
        from ostools.tasks.questions import questions

        options = dict(selection)
        return questions(options.pop("task"), **options)
    if figure == "all":
        from ostools.paper.claims.parts import claim_questions

        return claim_questions()
    from ostools.paper import figure_prompts

    number: Any = int(figure)  # a figure that has prompts: the command names it
    return figure_prompts(number, *(selection.get(name) for name in ("lengths", "seeds", "panels")))
