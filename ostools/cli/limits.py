"""Memory that a command may take: forecast before the model is loaded, and held while the command
works.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ostools.cli import terminal
from ostools.cli.commands import UNKNOWN, Command
from ostools.cli.global_options import GLOBALS
from ostools.cli.prompts import Value, split_prompts
from ostools.ground.errors import InsufficientMemoryError, in_words
from ostools.ground.memory import Free, available_memory, free_memory
from ostools.ground.out_of_memory import is_out_of_memory
from ostools.measure.measurement import RECORDS
from ostools.measure.memory import bytes_of
from ostools.measure.mitigated_prompts import rewritten_text
from ostools.measure.prompts import layers_up_to, prompt_named
from ostools.measure.unloaded import Forecast, Unloaded
from ostools.mitigations import Mitigation, optional
from ostools.models.files.sources import locate
from ostools.models.precision.scores import AUTO, arithmetic_named
from ostools.models.shape import resolve_device
from ostools.models.tokens import EncodingOptions, require_context
from ostools.tasks.questions import Question

Memory = Callable[[Unloaded], int]
"""Bytes that the work of a command holds beside the model, at its largest step."""


_GIB = 2**30
_WAYS = (
    "take shorter input or fewer lengths, load the model with --load-dtype bfloat16, free memory"
)
_FREE_ELSEWHERE = Free(2**62, "on a GPU that is not here")
"""What is free on another machine's GPU is not known: a dry run compares with `--max-memory` alone.
"""


def memory_of(command: Command, values: Mapping[str, Any]) -> Memory:
    """Bytes that the largest step of a command holds beside a model, as a function of the model:
    of its measurement (`measure.memory`), on the longest prompt as a mitigation rewrites it.

    Refuses, of the model, what its configuration and its tokenizer know: layers and prompts
    that it has not.
    """
    plain, prompts = split_prompts(values)
    measurement = command.measurement
    if measurement.__name__ in RECORDS:
        count_bytes = partial(bytes_of, measurement)
        arguments = {**plain, **command.sizes}
    else:
        count_bytes, arguments = measurement, {**values, **command.sizes}
    defaults = {p.name: p.default for p in command.parameters if p.default is not UNKNOWN}
    encoding = EncodingOptions(
        **{name: plain[name] for name in EncodingOptions.__annotations__ if name in plain}
    )
    mitigation = optional(plain.get("mitigation"))
    counts = [_tokens_of(prompt, mitigation, encoding) for prompt in prompts]

    def memory(model: Unloaded) -> int:
        if (layers := plain.get("layers")) is not None:
            layers_up_to(model.shape.n_layers, layers)
        longest = None
        for index, count in enumerate(counts):
            with prompt_named(prompts, index):
                longest = max(count(model), longest or 0)
        return count_bytes(model, longest, **{**defaults, **arguments})

    return memory


def _tokens_of(prompt: Value, mitigation: Mitigation | None, encoding: EncodingOptions) -> Memory:
    """The number of tokens of a prompt as a mitigation rewrites it, by the model; a question's with
    its line begun. Refuses, of the model, a prompt that is longer than its context.
    """

    def tokens(model: Unloaded) -> int:
        if isinstance(prompt, Question):
            options = {"seed": prompt.seed, "mitigation": mitigation}
            longest = model.longest(prompt.task, [prompt.length], **options, **encoding)
            require_context(longest.tokens, model.shape.context)
            return longest.tokens + longest.answer
        count = replace(model, encoding=encoding).pos(rewritten or prompt)
        require_context(count, model.shape.context)
        return count

    rewritten = None
    if not isinstance(prompt, Question):
        text = prompt if isinstance(prompt, str) else None
        rewritten, _ = rewritten_text("--mitigation", text, mitigation, "--task NAME --length N")
    return tokens


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
    free = _FREE_ELSEWHERE if is_elsewhere else _free(resolved)
    load_dtype = None if dtype == AUTO else arithmetic_named(dtype)[0]
    source = locate(model, None, load_dtype)
    try:
        unloaded = Unloaded(
            source, load_dtype or source.stored_dtype, resolved.type, GLOBALS.max_memory
        )
        _ = unloaded.shape, unloaded.held_bytes
    except (ValueError, OSError, KeyError):
        return None
    forecast = _fitted(unloaded, free, memory)
    program = f"{in_gib(forecast.program)} of it the program itself, " if forecast.program else ""
    terminal.note(
        f"forecast: {in_gib(forecast.memory)} of memory, {program}{in_gib(forecast.work or 0)} "
        "beside the model; its first steps measure the time"
    )
    _require_memory(forecast, free)
    return forecast


def _fitted(unloaded: Unloaded, free: Free, memory: Memory) -> Forecast:
    """The forecast of the work fitted to what is free beside the model, or as it is."""
    room = free.bytes - unloaded.held_bytes
    if unloaded.limit is None and room > 0:
        try:
            return unloaded.forecast(memory(replace(unloaded, limit=room)))
        except InsufficientMemoryError:
            pass
    return unloaded.forecast(memory(unloaded))


def in_gib(size: int) -> str:
    """Bytes in words."""
    for unit, name in ((_GIB, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit / 10:
            return f"{size / unit:.2f} {name}" if unit == _GIB else f"{size / unit:.0f} {name}"
    return f"{size} bytes"


def _free(device: torch.device) -> Free:
    if device.type == "cuda":
        return Free(available_memory(device), f"on {device}")
    return free_memory()


def _require_memory(forecast: Forecast, free: Free) -> None:
    work, allowed = forecast.work or 0, GLOBALS.max_memory
    if allowed is not None and work > allowed:
        raise InsufficientMemoryError(
            f"forecast {in_gib(work)} beside the model, {in_gib(allowed)} allowed by --max-memory: "
            f"allow more, or {_WAYS}"
        )
    if forecast.needed > free.bytes:
        raise InsufficientMemoryError(
            f"forecast {in_gib(forecast.memory)}, {in_gib(forecast.memory - work)} of it before "
            f"the work begins, found {free}: {_WAYS}"
        )


@contextmanager
def within_limits(device: str, forecast: Forecast | None) -> Iterator[None]:
    """Refuse the block where memory runs out in it, in one line with the forecast."""
    try:
        yield
    except Exception as error:
        if isinstance(error, InsufficientMemoryError) or not is_out_of_memory(error):
            raise
        expected = "" if forecast is None else f" forecast {in_gib(forecast.memory)},"
        raise InsufficientMemoryError(
            f"out of memory:{expected} found {_free(resolve_device(device))} ({in_words(error)}): "
            f"{_WAYS}"
        ) from None
