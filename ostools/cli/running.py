"""Run a command: refuse what can be refused, load, work under a bar, give the result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ostools.cli import terminal
from ostools.cli.commands import Command, read_arguments
from ostools.cli.hosted import hosted_result
from ostools.cli.prompts import Value, in_model, read_prompts
from ostools.cli.terminal import GLOBALS, set_globals
from ostools.ground import InputError, Progress
from ostools.ground.memory import collector_at_rest

if TYPE_CHECKING:
    from ostools.cli.limits import Memory
    from ostools.ground.lens import TransformerBridge
    from ostools.results import Result

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
