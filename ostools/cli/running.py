"""Run a command: refuse what can be refused, load, work under a bar, give the result."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from ostools.cli import output
from ostools.cli.commands import Command
from ostools.cli.global_options import GLOBALS, set_globals
from ostools.cli.options import has_model, read_arguments
from ostools.cli.prompts import Prompts
from ostools.cli.signature import imported, signature_of
from ostools.ground.errors import InputError
from ostools.ground.progress import Progress

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge

    from ostools.cli.memory.limits import Memory
    from ostools.runs.forecast import Forecast

EMBEDDED = "embedded"


def run(command: Command, values: Mapping[str, Any]) -> None:
    """Run a command with what was written: refused first where that can be, then measured."""
    set_globals(values)
    arguments = read_arguments(command, values)
    if command.draws:
        check_output(GLOBALS.out)
    if command.own:
        imported(command.function)(**arguments)
        return
    check(command, arguments)
    interruptible = any(parameter.name == "interrupted" for parameter in signature_of(command.function).parameters)
    if interruptible:
        from ostools.ground.signals import ended_by_signals

        ended_by_signals(lambda asked: _measure(command, arguments, values, interrupted=asked))
    else:
        _measure(command, arguments, values)


def check(command: Command, arguments: Mapping[str, Any]) -> None:
    """Refuse names that there are not, before a model is loaded."""
    from ostools.cli.checks import check_names, check_task

    check_names(arguments)
    if not command.pairs:
        check_task(arguments)
    if command.check is not None:
        imported(f"ostools.cli.checks:{command.check}")(arguments)


def _measure(command: Command, arguments: dict[str, Any], values: Mapping[str, Any], **given: Any) -> None:
    function, model = imported(command.function), values.get("model")
    fixed = {**command.fixed, **given}
    if command.hosted is not None:
        result = imported("ostools.cli.own.hosted:hosted_result")(command, function, arguments, values)
        if result is not None:
            give(result)
            return
    if not has_model(command):
        with output.progress(command.name) as progress:
            result = function(**_complete(command, {**arguments, **fixed}, progress))
        give(result)
        return
    from ostools.cli.memory.work import memory_of

    counted = any(parameter.name == "progress" for parameter in signature_of(command.function).parameters)
    memory = memory_of(command, arguments)
    with at_work(command.name, model or EMBEDDED, memory, counted=counted) as (loaded, progress):
        read = {name: on_model(loaded, value) for name, value in arguments.items()}
        result = function(loaded, **_complete(command, {**read, **fixed}, progress))
    give(result)


def on_model(model: TransformerBridge, value: Any) -> Any:
    """An argument as a measurement takes it: a prompt in tokens, anything else as it is."""
    return value.of(model) if isinstance(value, Prompts) else value


def _complete(command: Command, arguments: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Arguments with those that the command line gives itself."""
    supplied: dict[str, Any] = {
        "progress": progress,
        "announce": lambda text: output.note(f"plan: {text}"),
        "say": output.note,
        "max_memory": GLOBALS.max_memory,
    }
    names = {parameter.name for parameter in signature_of(command.function).parameters}
    return {name: value for name, value in supplied.items() if name in names} | arguments


def check_output(out: Path | None, option: str = "--out") -> None:
    """Refuse a path that no result can be written to, and a size of what is no picture."""
    from ostools.results import FIXED, checked_output

    if out is not None:
        checked_output(out, option=option)
    if GLOBALS.size is not None and (out is None or out.suffix.lower() not in FIXED):
        endings = " ".join(FIXED)
        raise InputError(f"--size is of a picture: expected {option} with a name ending in {endings}, found {out}")


@contextmanager
def at_work(
    doing: str,
    model: str,
    memory: Memory | None = None,
    *,
    device: str | None = None,
    dtype: str = "",
    counted: bool = True,
) -> Iterator[tuple[TransformerBridge, Progress]]:
    """The model, loaded, and what moves a bar that says what is being done.

    Before it is loaded the forecast of `memory`, the bytes of the work, is told and held against what is free and
    `--max-memory`. With `--dry-run` the command ends there. While it works no more is given than is free: where that
    runs out, `InsufficientMemoryError`. Work whose first steps show that it takes longer than `--max-time` ends
    (`InputError`); `counted`: its steps are told.
    """
    from ostools.cli.memory.limits import Clock, foreseen, require_counted

    device = device or GLOBALS.device or "auto"
    dtype = dtype or GLOBALS.load_dtype or "float32"
    if not counted:
        require_counted(doing)
    forecast = None if memory is None else foreseen(model, device, dtype, memory)
    if GLOBALS.dry_run:
        _end_with(forecast)
    with _loaded_and_at_work(doing, model, device, dtype, forecast) as (loaded, bar):
        yield loaded, Clock().progress(doing, bar)


@contextmanager
def _loaded_and_at_work(
    doing: str, model: str, device: str, dtype: str, forecast: Forecast | None
) -> Iterator[tuple[TransformerBridge, Callable[[int, int], None]]]:
    from ostools.cli.memory.limits import within_limits, within_time

    with within_time(), within_limits(device, forecast):
        loaded = _loaded(model, device, dtype)
        with output.progress(doing) as progress:
            yield loaded, progress


def each_at_work(doing: str, models: Sequence[str], memory: Memory) -> tuple[Iterator[TransformerBridge], Progress]:
    """Several models, each loaded when the one before it is let go; and what moves the bar.

    All are forecast, and told, before the first is loaded; `--dry-run` ends there. It ends the work within
    `limits.within_time`.
    """
    from ostools.cli.memory.limits import Clock, foreseen

    device, dtype = GLOBALS.device or "auto", GLOBALS.load_dtype or "float32"
    forecasts = [foreseen(model, device, dtype, memory) for model in models]
    if GLOBALS.dry_run:
        _end_with(*forecasts)
    bars: list[Callable[[int, int], None]] = []

    def each() -> Iterator[TransformerBridge]:
        for model, forecast in zip(models, forecasts, strict=True):
            with _loaded_and_at_work(f"{doing} {model}", model, device, dtype, forecast) as (loaded, bar):
                bars.append(bar)
                yield loaded
            del loaded
            gc.collect()  # a model is in circles: without this it stays beside the next

    return each(), Clock().progress(doing, lambda done, total: bars[-1](done, total))


def _end_with(*forecasts: Forecast | None) -> NoReturn:
    """The end of a dry run. The forecast was told as a note; programs get its numbers."""
    known = [forecast for forecast in forecasts if forecast is not None]
    if len(known) < len(forecasts):
        raise InputError(
            "--dry-run: expected a model and a prompt that can be forecast, found that something "
            "is wrong with one of them: leave --dry-run out, and the command says what"
        )
    if GLOBALS.json:
        numbers = [{"memory": forecast.memory, "work": forecast.work} for forecast in known]
        output.print_json(numbers[0] if len(numbers) == 1 else numbers)
    raise click.exceptions.Exit(0)


def _loaded(model: str, device: str, dtype: str) -> TransformerBridge:
    import torch

    from ostools.models import load_model
    from ostools.models.shape import one_is_enough

    with output.progress("loading the model"):
        loaded = load_model(model, dtype=dtype, device=device, device_map=GLOBALS.device_map, base=GLOBALS.base)
    if one_is_enough(loaded):
        torch.set_num_threads(1)
    return loaded


def give(result: Any) -> None:
    """The result to the file of --out, and as JSON if asked for; shown where neither was."""
    from ostools.cli.shown import findings_of, show

    written = None
    if (out := GLOBALS.out) is not None:
        # The page of an attention has the pattern of every head, to click through.
        page = out.suffix.lower() == ".html" and hasattr(result, "view")
        written = result.view().save(out) if page else result.save(out, size=GLOBALS.size)
    if GLOBALS.json:
        output.print_json(result.as_json())
    elif written is not None:
        output.tell_written(written)
        if not GLOBALS.quiet:
            output.print_text(findings_of(result, beside_a_file=True))
    else:
        if (mitigation := result.provenance.under) is not None:
            output.print_text([f"under the mitigation {mitigation}", ""])
        show(result)
