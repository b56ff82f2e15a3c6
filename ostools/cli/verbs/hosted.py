"""`ostools evaluate prompts`: write the prompts out for a model that runs elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ostools.cli import terminal
from ostools.cli.global_options import GLOBALS
from ostools.cli.hosted import hosted_questions
from ostools.ground.errors import InputError

if TYPE_CHECKING:
    from ostools.mitigations import Mitigation
    from ostools.tasks import Question


def hosted_result(
    command: Command,
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    values: Mapping[str, Any],
) -> Any:
    """The result on answers that a model gave elsewhere; None where a model is to be loaded.

    values: of all options, by name. Raises `InputError` for options that only a model that is
    loaded here has.
    """
    file, endpoint, name = (values.get(key) for key in ("answers", "endpoint", "model"))
    if file is None:
        if endpoint is not None:
            raise InputError("--endpoint: expected --answers FILE too, where the answers are kept as they come")
        return None
    options = {field.name: field.declared.opts[0] for field in fields_of(command)}
    allowed = {*command.of_questions, *command.defaults, *(() if endpoint is None else ("max_new_tokens",))}
    if used := [options[key] for key in arguments if key not in allowed] + GLOBALS.of_a_loaded_model:
        raise InputError(f"{used[0]} is of a model that is loaded here: leave it out with --answers")
    from ostools.measure import ask_endpoint, hosted_evaluation, read_answers

    selection = {key: value for key, value in arguments.items() if key in command.of_questions}
    is_figure = command.hosted == "figure_questions"
    questions = _questions(selection, str(command.fixed.get("number", 2)) if is_figure else None)
    if endpoint is None:
        answers = read_answers(file, questions, model=name)
    elif name is None:
        raise InputError("--endpoint: expected --model NAME too, the model's name there")
    else:
        limit = arguments.get("max_new_tokens")
        with terminal.progress("asking") as progress:
            answers = ask_endpoint(endpoint, name, questions, file, max_tokens=limit, progress=progress)
    if command.words[0] == "evaluate":
        return hosted_evaluation(answers)
    return function(answers, **selection, **command.fixed)


def _questions(selection: Mapping[str, Any], figure: str | None = None) -> list[Question]:
    """The questions of a task, or of one of the paper's figures; "all": those of all claims."""
    if figure is None:
        from ostools.tasks.questions import questions

        return questions(selection["task"], **{key: value for key, value in selection.items() if key != "task"})
    if figure == "all":
        from ostools.experiments.reproduce.parts import claim_questions

        return claim_questions()
    from ostools.experiments import figure_prompts

    return figure_prompts(int(figure), *(selection.get(name) for name in ("lengths", "seeds", "panels")))


def prompts(
    *,
    task: str | None = None,
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
    from ostools.tasks.questions import as_row, prompts_jsonl

    if out is not None:
        from ostools.results import checked_output

        checked_output(out, (".jsonl",), option="--out")
    options: dict[str, Any] = {"lengths": lengths, "seeds": seeds}
    selection = {name: value for name, value in options.items() if value is not None}
    if figure is None:
        selection |= {"task": task or "count-ones", "mitigation": mitigation}
        questions = hosted_questions({"lengths": range(1, 65)} | selection)
    else:
        chosen = {"task": task, "mitigation": mitigation} | (selection if figure == "all" else {})
        if used := [name for name, value in chosen.items() if value is not None]:
            raise InputError(f"--figure {figure} has a --{used[0]} of its own: leave it out")
        questions = hosted_questions(selection, figure)
    if out is not None:
        from ostools.results import write_atomically

        write_atomically(out, lambda part: part.write_text(prompts_jsonl(questions), "utf-8"))
        terminal.tell_written(out)
    elif GLOBALS.json:
        terminal.print_json([as_row(question) for question in questions])
    else:
        sys.stdout.write(prompts_jsonl(questions))
