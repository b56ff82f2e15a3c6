"""Memory and time that a command may take.

Memory is forecast before the model is loaded, and held while the command works. Time is expected
by what is done so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import torch

from ostools.cli import terminal
from ostools.cli.commands import UNKNOWN, Command
from ostools.cli.global_options import GLOBALS
from ostools.cli.prompts import Prompts, Value
from ostools.ground.arguments import full_signature
from ostools.ground.errors import InputError, InsufficientMemoryError, in_words
from ostools.ground.memory import Free, available_memory, free_memory
from ostools.ground.out_of_memory import is_out_of_memory, shorter_ways
from ostools.ground.progress import FIRST_ESTIMATE, Clock, Progress, in_time, tell
from ostools.measure.mitigated_prompts import acting_bytes, rewritten_text
from ostools.measure.prompts import layers_up_to
from ostools.measure.unloaded import Forecast, Unloaded
from ostools.mitigations import Mitigation, MitigationError, optional
from ostools.models.devices import resolve_device
from ostools.models.files.sources import locate
from ostools.models.precision.scores import AUTO, arithmetic_named
from ostools.models.tokens import EncodingOptions
from ostools.tasks.questions import Question

Memory = Callable[[Unloaded], int]
"""Bytes that the work of a command holds beside the model, at its largest step."""


@dataclass(frozen=True)
class CommandMemory:
    """The `Memory` of a command with its arguments. savings: options that are not chosen, and what
    each changes of the arguments. shorter: ways to a shorter prompt in this call."""

    work: Callable[[Unloaded, Mapping[str, Any]], int]
    savings: Mapping[str, Mapping[str, Any]]
    shorter: tuple[str, ...]

    def __call__(self, model: Unloaded) -> int:
        return self.work(model, {})

    def with_options(self, options: Iterable[str]) -> Memory:
        """The memory with some of the savings."""
        changes = {
            name: value for option in options for name, value in self.savings[option].items()
        }
        return lambda model: self.work(model, changes)


_GIB = 2**30
_FREE_ELSEWHERE = Free(2**62, "on a GPU that is not here")
"""What is free on another machine's GPU is not known: a dry run compares with `--max-memory` alone.
"""


class _TooLong(KeyboardInterrupt):
    """The end of work that exceeds `--max-time`: an interrupt, so that no part takes it for a
    failure.
    """


def timed(progress: Progress) -> Progress:
    """The progress of a command on all of its models, which ends work that would take longer than
    `--max-time`.
    """
    clock, limit = Clock(), GLOBALS.max_time
    if limit is None:
        return progress

    def timed_progress(steps: int, total: int) -> None:
        tell(progress, steps, total)
        clock.told(steps, total)
        left, elapsed = clock.seconds_left(), clock.seconds
        expected = elapsed + (left or 0)
        if elapsed < min(FIRST_ESTIMATE, limit) or expected <= limit or steps >= total:
            return
        share, about = 100 * steps / total, "more than" if left is None else "about"
        enough = in_time(2 * expected).replace(" ", "")  # the rest may be slower
        raise _TooLong(
            f"{share:.0f}% done after {in_time(elapsed)}, so {about} {in_time(expected)} in all, which is longer than "
            f"--max-time: about {share * limit / elapsed:.0f}% of it would fit (a shorter prompt, fewer lengths, a faster "
            f"machine); or give --max-time {enough}"
        )

    return timed_progress


@contextmanager
def within_time() -> Iterator[None]:
    """Turn the end of work that takes too long into a refusal (`InputError`)."""
    try:
        yield
    except _TooLong as error:
        raise InputError(str(error)) from None


_SAVINGS: dict[str, dict[str, Any]] = {
    "--dtypes bfloat16": {"dtypes": ["bfloat16"]},
    "--no-random-weights": {"random_weights": False},
}
_LOADED = "--load-dtype bfloat16"


def memory_of(command: Command, values: Mapping[str, Any]) -> CommandMemory:
    """Bytes that the largest step of a command holds beside a model, as a function of the model.

    The record of a measurement names the function that counts them, which stands beside what is
    large (`measure.unloaded`). It takes those of the command's arguments that it has as parameters;
    `pos` are the tokens of the longest prompt, as a mitigation rewrites it.
    """
    function = command.count_memory
    defaults = {parameter.name: parameter.default for parameter in command.parameters}
    defaults = {
        name: value
        for name, value in defaults.items()
        if value is not UNKNOWN and value is not None
    }
    names = full_signature(function).parameters
    arguments = {name: value for name, value in {**defaults, **values}.items() if name in names}
    prompts, mitigation = values.get("prompt", values.get("prompts")), values.get("mitigation")
    savings = {
        option: changes
        for option, changes in _SAVINGS.items()
        if all(
            name in names and _as_list(arguments.get(name, value)) != value
            for name, value in changes.items()
        )
    }
    shorter = tuple(shorter_ways({**defaults, **values}))
    if "pos" not in names or not isinstance(prompts, Prompts):

        def of_task(model: Unloaded, changes: Mapping[str, Any]) -> int:
            _require_layers(model, values)
            return function(model, **{**arguments, **changes})

        return CommandMemory(of_task, savings, shorter)

    acting = optional(mitigation)
    encoding: Any = {
        name: values[name] for name in EncodingOptions.__annotations__ if name in values
    }
    counts = [_tokens_of(value, acting, encoding) for value in prompts.values]

    def memory(model: Unloaded, changes: Mapping[str, Any]) -> int:
        """The work on the longest prompt, and the pass that shows whether a mitigation acts."""
        _require_layers(model, values)
        pos = max(count(model) for count in counts)
        return max(
            acting_bytes(model.shape, pos, acting), function(model, pos, **{**arguments, **changes})
        )

    return CommandMemory(memory, savings, shorter)


def _as_list(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _require_layers(model: Unloaded, values: Mapping[str, Any]) -> None:
    """Refuse layers that the model does not have: its configuration says so before it is loaded."""
    if values.get("layers") is not None:
        layers_up_to(model.shape.n_layers, values["layers"])


def _tokens_of(
    prompt: Value, acting: Mitigation | None, encoding: EncodingOptions
) -> Callable[[Unloaded], int]:
    """The number of tokens of a prompt as a mitigation rewrites it, by the model; a question's with
    its line begun.
    """
    if isinstance(prompt, Question):
        form, options = prompt.task, {"seed": prompt.seed, "mitigation": acting}

        def tokens(model: Unloaded) -> int:
            longest = model.longest(form, [prompt.length], **options, **encoding)
            return longest.tokens + longest.answer

        return tokens
    instead = "--task NAME --length N"
    text, _ = rewritten_text(
        "--mitigation", prompt if isinstance(prompt, str) else None, acting, instead
    )
    return lambda model: replace(model, encoding=encoding).pos(text or prompt)


def forecast_of(model: str, device: str, dtype: str, memory: Memory) -> Forecast | None:
    """Note the forecast and return it; None where loading the model will say what is wrong.

    Raises `InsufficientMemoryError` for what is forecast not to fit, and what the function of its
    memory refuses. A dry run may be of a GPU that another machine has: it is compared with
    `--max-memory` alone.
    """
    is_elsewhere = (
        GLOBALS.dry_run and device.partition(":")[0] == "cuda" and not torch.cuda.is_available()
    )
    resolved = torch.device("cuda") if is_elsewhere else resolve_device(device)
    asked = None if dtype == AUTO else arithmetic_named(dtype)[0]
    source, free = locate(model, None, asked), _FREE_ELSEWHERE if is_elsewhere else _free(resolved)
    try:
        dtype_to_load = asked or source.stored_dtype
        unloaded = Unloaded(
            source, dtype_to_load, resolved.type, GLOBALS.device_map, GLOBALS.max_memory
        )
        _ = unloaded.shape, unloaded.held_bytes
    except (ValueError, OSError, KeyError):
        return None
    try:
        forecast = _fitted(unloaded, free, memory)
    except (InputError, MitigationError):
        raise
    except (ValueError, OSError, KeyError):
        return None
    terminal.note(
        f"forecast: {in_gib(forecast.memory)} of memory, {in_gib(forecast.work or 0)} of it beside "
        "the model; its first steps measure the time"
    )
    _require_memory(unloaded, forecast, free, memory)
    return forecast


def _fitted(unloaded: Unloaded, free: Free, memory: Memory) -> Forecast:
    """The forecast of the work fitted to what is free beside the model; where none fits, as it is."""
    room = free.bytes - unloaded.held_bytes
    if unloaded.limit is None and room > 0:
        try:
            return unloaded.forecast(memory(replace(unloaded, limit=room)))
        except InsufficientMemoryError:
            pass
    return unloaded.forecast(memory(unloaded))


def in_gib(size: int) -> str:
    """Bytes in words."""
    return f"{size / _GIB:.2f} GiB" if size >= _GIB / 10 else f"{size / 2**20:.0f} MiB"


def _free(device: torch.device) -> Free:
    if device.type == "cuda":
        return Free(available_memory(device), f"on {device}")
    return free_memory()


def _require_memory(unloaded: Unloaded, forecast: Forecast, free: Free, memory: Memory) -> None:
    work, ways = (
        forecast.work or 0,
        list(memory.shorter) if isinstance(memory, CommandMemory) else [],
    )
    if (allowed := GLOBALS.max_memory) is not None and work > allowed:
        saving = _saving_ways(
            unloaded, free, memory, lambda other: (other.work or 0, other.work or 0), allowed
        )
        raise InsufficientMemoryError(
            f"forecast {in_gib(work)} beside the model, {in_gib(allowed)} allowed by "
            f"--max-memory: {', '.join([*saving, 'allow more', *ways])}"
        )
    if forecast.beside_libraries <= free.bytes:
        return
    saving = _saving_ways(
        unloaded, free, memory, lambda other: (other.memory, other.beside_libraries), free.bytes
    )
    ways = [*saving, *ways, "free memory"]
    if unloaded.device_map is None:
        ways.append("leave weights on disk with --device-map auto")
    raise InsufficientMemoryError(
        f"forecast {in_gib(forecast.memory)}, {in_gib(forecast.memory - work)} of it before the "
        f"work begins, found {free}: {', '.join(ways)}, or take a machine with more"
    )


def _saving_ways(
    unloaded: Unloaded,
    free: Free,
    memory: Memory,
    sizes: Callable[[Forecast], tuple[int, int]],
    limit: int,
) -> list[str]:
    """The fewest options with which the command fits; where it fits with none, all of them, and
    what it takes then.

    sizes: of a forecast the bytes that are told, and those that have to be within `limit`.
    """
    savings = [_LOADED] if unloaded.dtype.itemsize > 2 else []
    savings += memory.savings if isinstance(memory, CommandMemory) else []
    words: list[str] = []
    for options in (
        chosen for count in range(1, 1 + len(savings)) for chosen in combinations(savings, count)
    ):
        model = replace(unloaded, dtype=torch.bfloat16) if _LOADED in options else unloaded
        changed = memory
        if isinstance(memory, CommandMemory):
            changed = memory.with_options(option for option in options if option != _LOADED)
        told, needed = sizes(_fitted(model, free, changed))
        fits = needed <= limit
        words = [
            f"with {' '.join(options)} it takes {in_gib(told)}{', which fits' if fits else ''}"
        ]
        if fits:
            break
    return words


@contextmanager
def within_limits(device: str, forecast: Forecast | None) -> Iterator[None]:
    """Refuse the block where memory runs out in it, in one line with the forecast."""
    resolved = resolve_device(device)
    try:
        yield
    except Exception as error:
        if isinstance(error, InsufficientMemoryError) or not is_out_of_memory(error):
            raise
        expected = "" if forecast is None else f" forecast {in_gib(forecast.memory)},"
        dtype, _ = arithmetic_named(GLOBALS.load_dtype or "float32")
        smaller = f"load the model with {_LOADED}, " if dtype.itemsize > 2 else ""
        raise InsufficientMemoryError(
            f"out of memory:{expected} found {_free(resolved)} ({in_words(error)}): {smaller}take shorter input, or free memory"
        ) from None
