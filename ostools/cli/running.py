"""Run a command: refuse what can be refused, load, work under a bar, give the result."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ostools.cli import terminal
from ostools.cli.commands import Command, Value, read_arguments
from ostools.cli.hosted import hosted_result
from ostools.cli.terminal import GLOBALS, set_globals
from ostools.ground import InputError, Progress
from ostools.ground.memory import collector_at_rest

if TYPE_CHECKING:
    from ostools.cli.limits import Memory
    from ostools.ground import TransformerBridge
    from ostools.models import Prompt
    from ostools.results import Result
    from ostools.tasks.questions import Question

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
