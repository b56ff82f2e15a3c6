"""Models that run elsewhere: their prompts are written out, their answers are read, or their
server is asked."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ostools.cli import output
from ostools.cli.commands import Command
from ostools.cli.global_options import GLOBALS
from ostools.ground.errors import InputError

if TYPE_CHECKING:
    from ostools.tasks import Question

_LENGTHS = range(1, 65)


def hosted_result(
    command: Command, function: Callable[..., Any], given: Mapping[str, Any], line: Mapping[str, Any]
) -> Any:
    """The result on answers that were given elsewhere; None where a model is to be loaded.

    line: the values of all options, by name. Raises `InputError` for options that only a model
    that is loaded here has.
    """
    answers, endpoint, name = (line.get(key) for key in ("answers", "endpoint", "model"))
    if answers is None:
        if endpoint is not None:
            raise InputError("--endpoint: expected --answers FILE too, where the answers are kept as they come")
        return None
    from ostools.cli.options import fields_of

    options = {field.name: field.declared.opts[0] for field in fields_of(command)}
    asking = (*command.of_questions, *(("max_new_tokens",) if endpoint else ()))
    refused = [options[key] for key in given if key not in (*asking, *command.defaults)]
    refused += [key for key, value in GLOBALS.of_a_loaded_model.items() if value is not None]
    if refused:
        raise InputError(f"{refused[0]} is of a model that is loaded here: leave it out with --answers")
    from ostools.cli.signature import imported
    from ostools.measure import ask_endpoint, hosted_evaluation, read_answers

    chosen = {key: value for key, value in given.items() if key in command.of_questions}
    questions = imported(f"ostools.cli.own.hosted:{command.hosted}")(command.fixed.get("number", 2), chosen)
    if endpoint is None:
        hosted = read_answers(answers, questions, model=name)
    elif name is None:
        raise InputError("--endpoint: expected --model NAME too, the model's name there")
    else:
        limit = given.get("max_new_tokens")
        with output.progress("asking") as progress:
            hosted = ask_endpoint(endpoint, name, questions, answers, max_tokens=limit, progress=progress)
    if command.words[0] == "evaluate":
        return hosted_evaluation(hosted)
    return function(hosted, **chosen, **command.fixed)


def questions(number: int, chosen: Mapping[str, Any]) -> list[Question]:
    """The questions of a task; `number`: of a figure, unused."""
    from ostools.tasks.questions import questions as of_task

    task, *_ = (chosen[key] for key in ("task",))
    rest = {key: value for key, value in chosen.items() if key != "task"}
    return of_task(task, **rest)


def figure_questions(number: int, chosen: Mapping[str, Any]) -> list[Question]:
    """The questions of one of the paper's figures."""
    from ostools.experiments import figure_prompts

    form = {name: value for name, value in chosen.items() if name not in ("lengths", "seeds")}
    form.pop("panels", None)
    return figure_prompts(number, chosen.get("lengths"), chosen.get("seeds"), **form)


def prompts(
    *,
    task: str | None = None,
    lengths: Sequence[int] | None = None,
    seeds: Sequence[int] | None = None,
    mitigation: str | None = None,
    figure: Literal["2", "3", "4", "6", "7"] | None = None,
    mode: str | None = None,
    examples: str | None = None,
    tidy: bool = False,
    out: Path | None = None,
) -> None:
    """Write every prompt of a task or figure with its id, for a model that runs elsewhere.

    One JSON object a line. Send `prompt` as it stands; answer with {"id": ..., "text": ...}, one
    object a line, and read the answers by `ostools evaluate --answers` with the same options, or by
    `ostools reproduce figure N --answers`.

    Args:
        lengths: numbers of items; without it 1:64, or those of the figure.
        seeds: one sequence for each, of a task that draws its sequence; without it 0.
        figure: all prompts of that figure, instead of one task's.
        out: a .jsonl file; else stdout.
    """
    from ostools.tasks.questions import as_row, prompts_jsonl

    if out is not None:
        from ostools.results import checked_output

        checked_output(out, (".jsonl",), option="--out")
    form = {"mode": mode, "examples": examples, "tidy": tidy or None}
    chosen: dict[str, Any] = {"lengths": lengths, "seeds": seeds, **form}
    chosen = {name: value for name, value in chosen.items() if value is not None}
    if figure is None:
        for name in form:
            if name in chosen:
                raise InputError(
                    f"--{name} is of a figure: write it into the task, such as "
                    "count-ones:tidy=true or count-ones:mode=answer-only"
                )
        chosen |= {"task": task or "count-ones", "mitigation": mitigation}
        asked = questions(0, {"lengths": _LENGTHS} | chosen)
    else:
        for name, value in (("--task", task), ("--mitigation", mitigation)):
            if value is not None:
                raise InputError(f"--figure {figure} has tasks of its own: leave {name} out")
        asked = figure_questions(int(figure), chosen)
    if out is not None:
        from ostools.results import write_atomically

        write_atomically(out, lambda part: part.write_text(prompts_jsonl(asked), "utf-8"))
        output.tell_written(out)
    elif GLOBALS.json:
        output.print_json([as_row(question) for question in asked])
    else:
        sys.stdout.write(prompts_jsonl(asked))
