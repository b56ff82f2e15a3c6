"""Run a command: refuse what can be refused, load, work under a bar, give the result.

For models that run elsewhere `ostools evaluate prompts` writes the prompts out, and the result on
the answers is read from a file, or asked of a server.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from ostools.cli import terminal
from ostools.cli.commands import Command, Value, read_arguments
from ostools.cli.terminal import GLOBALS, set_globals
from ostools.ground import InputError, Progress, collector_at_rest

if TYPE_CHECKING:
    from ostools.cli.limits import Memory
    from ostools.ground import TransformerBridge
    from ostools.mitigations import Mitigation
    from ostools.models import Prompt
    from ostools.results import Result
    from ostools.tasks import Question, Task

EMBEDDED = "embedded"
_BESIDE_A_FILE = 5
"""Sentences that are printed of a result that went to a file."""


def run(command: Command, values: Mapping[str, Any]) -> None:
    """Run a command with what was written: refused first where that can be, then measured."""
    set_globals(values)
    with collector_at_rest():  # imports take a second, of which it would take a fifth
        prompts, arguments = read_prompts(command, values), read_arguments(command, values)
        if command.measures:
            _check_output(GLOBALS.out)
        function = command.run
    if not command.measures:
        function(**arguments)
        return
    from ostools.measure.measurement import refuse_arguments

    arguments |= command.fixed
    for checked in command.checking:
        refuse_arguments(checked, arguments, prompts)
    result = hosted_result(command, arguments, values) if command.of_questions else None
    give(_measured(command, prompts, arguments, values) if result is None else result)


def _check_output(out: Path | None) -> None:
    """Refuse a path that no result can be written to, and a size of what is no picture."""
    from ostools.results import FIXED, checked_output

    if out is not None:
        checked_output(out, option="--out")
    if GLOBALS.size is not None and (out is None or out.suffix.lower() not in FIXED):
        endings = " ".join(FIXED)
        raise InputError(f"--size: expected --out with a name ending in {endings}, found {out}")


def _measured(
    command: Command,
    prompts: Sequence[Value],
    arguments: Mapping[str, object],
    values: Mapping[str, Any],
) -> Result:
    """The result of a command's function, on a model where it takes one."""
    if not command.of_kind("model"):
        return command.run(**arguments)
    from ostools.cli.limits import memory_of

    memory = memory_of(command, prompts, arguments)
    with at_work(command.name, values.get("model"), memory) as (model, progress):
        supplied: dict[str, object] = {
            "model": model,
            "progress": progress,
            "limit": GLOBALS.max_memory,
        }
        if prompts:
            supplied["prompt"] = in_model(model, prompts)
        parameters = command.of_kind(*supplied)
        return command.run(**{p.name: supplied[p.kind] for p in parameters}, **arguments)


@contextmanager
def at_work(
    doing: str,
    model: str | None,
    memory: Memory | None = None,
    *,
    device: str | None = None,
    dtype: str | None = None,
) -> Iterator[tuple[TransformerBridge, Progress]]:
    """Load a model, or the embedded one; give it, and the progress of the work on it.

    Before, the forecast of `memory` is noted and compared with what is free and `--max-memory`;
    with `--dry-run` the command ends there.
    """
    from ostools.cli.limits import forecast_of

    model = model or EMBEDDED
    device = device or GLOBALS.device or "auto"
    dtype = dtype or GLOBALS.load_dtype or "auto"
    with collector_at_rest():
        forecast = None if memory is None else forecast_of(model, device, dtype, memory)
    if GLOBALS.dry_run:
        if forecast is None:
            raise InputError(
                "--dry-run: found nothing to forecast; the command without it says why"
            )
        if GLOBALS.json:
            terminal.print_json({"memory": forecast.memory, "work": forecast.work})
        raise click.exceptions.Exit(0)
    from ostools.models import load_model

    loaded = load_model(model, dtype=dtype, device=device)
    with terminal.progress(doing) as progress:
        yield loaded, progress


def give(result: Result) -> None:
    """The result to the file of --out, and as JSON if asked for; shown where neither was."""
    file = None if GLOBALS.out is None else result.save(GLOBALS.out, size=GLOBALS.size)
    if GLOBALS.json:
        terminal.print_json(result.as_json())
    elif file is not None:
        terminal.tell_written(file)
        if not GLOBALS.quiet:
            terminal.print_text(result.findings()[:_BESIDE_A_FILE])
    else:
        if (mitigation := result.provenance.mitigation) is not None:
            terminal.print_text([f"under the mitigation {mitigation}", ""])
        terminal.show(result)


# --- prompts: texts or token ids, or a task's question


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


# --- models that run elsewhere


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
