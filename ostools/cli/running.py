"""Run a command: refuse what can be refused, load, work under a bar, give the result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from ostools.cli import terminal
from ostools.cli.commands import Command
from ostools.cli.global_options import GLOBALS, set_globals
from ostools.cli.hosted import hosted_result
from ostools.cli.options import read_arguments
from ostools.cli.prompts import Prompts, split_prompts
from ostools.ground.errors import InputError
from ostools.ground.memory import collector_at_rest
from ostools.ground.progress import Progress

if TYPE_CHECKING:
    from ostools.cli.limits import Memory
    from ostools.ground.lens import TransformerBridge
    from ostools.measure.unloaded import Forecast
    from ostools.results import Result

EMBEDDED = "embedded"
_BESIDE_A_FILE = 5
"""Sentences that are printed of a result that went to a file."""


def run(command: Command, values: Mapping[str, object]) -> None:
    """Run a command with what was written: refused first where that can be, then measured."""
    set_globals(values)
    with collector_at_rest():
        arguments = read_arguments(command, values)
        if command.draws:
            _check_output(GLOBALS.out)
        if command.runs_model:
            import ostools.measure  # noqa: F401 (in a second, of which the collector takes a fifth)
    if command.loads_model:
        command.run(**arguments)
        return
    _measure(command, arguments, values)


def _measure(command: Command, arguments: dict[str, object], values: Mapping[str, object]) -> None:
    function, names = command.run, command.names
    _refuse_arguments(command, arguments)
    result = None
    if command.hosted is not None:
        result = hosted_result(command, arguments, values)
    supplied: dict[str, object] = {"say": terminal.note, "max_memory": GLOBALS.max_memory}
    options = {name: value for name, value in supplied.items() if name in names}
    options |= command.fixed
    if result is None:
        with _at_work_of(command, arguments, values) as (models, progress):
            options |= {"progress": progress} if "progress" in names else {}
            encoded = {
                key: value.of(*models) if isinstance(value, Prompts) else value
                for key, value in arguments.items()
            }
            result = function(*models, **options, **encoded)
    give(result)


def _refuse_arguments(command: Command, arguments: Mapping[str, object]) -> None:
    """Refuse what the command's functions would refuse before they look at the model."""
    from ostools.measure.measurement import refuse_arguments

    plain, prompts = split_prompts(arguments)
    plain |= command.fixed
    # A token by its number is the sensitivity's position; of it `bounds` gets all of its rows.
    named = plain if isinstance(plain.get("position"), str) else {**plain, "position": None}
    for function in command.checking:
        refuse_arguments(function, named if function.__name__ == "bounds" else plain, prompts)


@contextmanager
def _at_work_of(
    command: Command, arguments: Mapping[str, object], values: Mapping[str, object]
) -> Iterator[tuple[list[TransformerBridge], Progress]]:
    """The model of a command, in a list that is empty where it has none, and its progress."""
    if not command.runs_model:
        with terminal.progress(command.name) as progress:
            yield [], progress
        return
    from ostools.cli.limits import memory_of

    name, memory = str(values.get("model") or EMBEDDED), memory_of(command, arguments)
    with at_work(command.name, name, memory) as (model, progress):
        yield [model], progress


def _check_output(out: Path | None) -> None:
    """Refuse a path that no result can be written to, and a size of what is no picture."""
    from ostools.results import FIXED, checked_output

    if out is not None:
        checked_output(out, option="--out")
    if GLOBALS.size is not None and (out is None or out.suffix.lower() not in FIXED):
        endings = " ".join(FIXED)
        raise InputError(
            f"--size is of a picture: expected --out with a name ending in {endings}, found {out}"
        )


@contextmanager
def at_work(
    doing: str,
    model: str,
    memory: Memory | None = None,
    *,
    device: str | None = None,
    dtype: str = "",
) -> Iterator[tuple[TransformerBridge, Progress]]:
    """Load a model; give it, and the progress of the work on it.

    Before, the forecast of `memory` is noted and compared with what is free and `--max-memory`;
    with `--dry-run` the command ends there. Raises `InsufficientMemoryError` where memory runs out.
    """
    from ostools.cli.limits import forecast_of, within_limits

    device = device or GLOBALS.device or "auto"
    dtype = dtype or GLOBALS.load_dtype or "auto"
    with collector_at_rest():
        forecast = None if memory is None else forecast_of(model, device, dtype, memory)
    if GLOBALS.dry_run:
        _end_with(forecast)
    import torch

    from ostools.models import load_model
    from ostools.models.shape import one_is_enough

    with within_limits(device, forecast):
        if terminal.shows_bar():
            terminal.note(f"loading {model}")
        loaded = load_model(model, dtype=dtype, device=device)
        if one_is_enough(loaded):
            torch.set_num_threads(1)
        with terminal.progress(doing) as progress:
            yield loaded, progress


def _end_with(forecast: Forecast | None) -> NoReturn:
    """The end of a dry run. The forecast was told as a note; programs get its numbers."""
    if forecast is None:
        raise InputError(
            "--dry-run: expected a model and a prompt that can be forecast, found that something "
            "is wrong with one of them: leave --dry-run out, and the command says what"
        )
    if GLOBALS.json:
        terminal.print_json({"memory": forecast.memory, "work": forecast.work})
    raise click.exceptions.Exit(0)


def give(result: Result) -> None:
    """The result to the file of --out, and as JSON if asked for; shown where neither was."""
    file = None
    if (out := GLOBALS.out) is not None:
        file = result.save(out, size=GLOBALS.size)
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
