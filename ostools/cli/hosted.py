"""The result on answers that a model gave elsewhere: read from a file, or asked of its server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ostools.cli import terminal
from ostools.cli.commands import Command
from ostools.cli.global_options import GLOBALS
from ostools.ground.errors import InputError

if TYPE_CHECKING:
    from ostools.measure import Hosted
    from ostools.results import Result
    from ostools.tasks import Question


def hosted_result(
    command: Command, arguments: Mapping[str, object], values: Mapping[str, object]
) -> Result | None:
    """The result on answers that a model gave elsewhere; None where a model is to be loaded.

    values: of all options, by name. Raises `InputError` for options that only a model that is
    loaded here has.
    """
    file, endpoint, name = (values.get(option) for option in ("answers", "endpoint", "model"))
    if file is None and endpoint is None:
        return None
    if file is None or (endpoint is not None and name is None):
        raise InputError(
            "--endpoint: expected --answers FILE too, where the answers are kept, and --model "
            "NAME, the model's name there"
        )
    _refuse_of_a_loaded_model(command, arguments, "" if endpoint is None else "max_new_tokens")
    from ostools.measure import hosted_evaluation

    selection = {key: value for key, value in arguments.items() if key in command.of_questions}
    is_figure = command.hosted == "figure_questions"
    figure = str(command.fixed.get("number", 2)) if is_figure else None
    answers = _answers(hosted_questions(selection, figure), str(file), endpoint, name, arguments)
    if command.words[0] == "evaluate":
        return hosted_evaluation(answers)
    return command.run(answers, **selection, **command.fixed)


def _answers(
    questions: list[Question],
    file: str,
    endpoint: object,
    name: object,
    arguments: Mapping[str, object],
) -> Hosted:
    """The answers of a file; those that it lacks are asked of an endpoint, where there is one."""
    from ostools.measure import ask_endpoint, read_answers

    if endpoint is None:
        return read_answers(file, questions, model=None if name is None else str(name))
    limit = arguments.get("max_new_tokens")
    most = limit if isinstance(limit, int) else None
    place = str(endpoint), str(name)
    with terminal.progress("asking") as progress:
        return ask_endpoint(*place, questions, file, max_tokens=most, progress=progress)


def _refuse_of_a_loaded_model(
    command: Command, arguments: Mapping[str, object], also_read: str
) -> None:
    """Refuse options that would be ignored: those of a model that is loaded here."""
    read = {*command.of_questions, *command.defaults, also_read}
    used = [f"--{key.replace('_', '-')}" for key in arguments if key not in read]
    if used := used + GLOBALS.of_a_loaded_model:
        raise InputError(
            f"{used[0]} is of a model that is loaded here: leave it out with --answers"
        )


def hosted_questions(selection: Mapping[str, Any], figure: str | None = None) -> list[Question]:
    """The questions of a task, or of one of the paper's figures; "all": those of all claims."""
    if figure is None:
        from ostools.tasks.questions import questions

        return questions(selection["task"], **{k: v for k, v in selection.items() if k != "task"})
    if figure == "all":
        from ostools.paper.claims.parts import claim_questions

        return claim_questions()
    from ostools.paper import figure_prompts

    number: Any = int(figure)  # a figure that has prompts: the command names it
    return figure_prompts(number, *(selection.get(name) for name in ("lengths", "seeds", "panels")))
