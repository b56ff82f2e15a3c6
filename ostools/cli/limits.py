"""Memory that a command may take: forecast before the model is loaded."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ostools.cli import terminal
from ostools.cli.commands import Command, Value
from ostools.cli.terminal import GLOBALS
from ostools.ground import InsufficientMemoryError, available_memory, defaults_of
from ostools.measure.measurement import refuse_arguments
from ostools.measure.memory import bytes_of
from ostools.measure.mitigated_prompts import rewritten_text
from ostools.measure.prompts import prompt_named
from ostools.measure.task_prompt import in_tokens_already
from ostools.measure.unloaded import Forecast, LongestPrompt, Unloaded
from ostools.mitigations import Mitigation, optional
from ostools.models import EncodingOptions
from ostools.models.files.sources import locate
from ostools.models.precision.scores import AUTO, arithmetic_named
from ostools.models.shape import resolve_device
from ostools.models.tokens import require_chat, require_context
from ostools.tasks import Question

Memory = Callable[[Unloaded], int]
"""Bytes that the work of a command holds beside the model, at its largest step."""


def memory_of(command: Command, prompts: Sequence[Value], arguments: Mapping[str, Any]) -> Memory:
    """Bytes that the largest step of a command holds beside a model, as a function of the model:
    of its measurement (`measure.memory`), on the longest prompt as a mitigation rewrites it.

    Refuses, of the model, what its configuration and its tokenizer know: layers and prompts
    that it has not.
    """
    encoding = EncodingOptions(
        **{name: arguments[name] for name in EncodingOptions.__annotations__ if name in arguments}
    )
    acting = [arguments.get(p.name) for p in command.of_kind("mitigation") if not p.many]
    mitigation = optional(next(iter(acting), None))

    def memory(unloaded: Unloaded) -> int:
        model = _WithinContext(**vars(unloaded))
        for checked in command.checking:
            refuse_arguments(checked, arguments, prompts, n_layers=model.shape.n_layers)
        counts: list[int] = []
        for index, prompt in enumerate(prompts):
            with prompt_named(prompts, index):
                counts.append(_tokens_of(model, prompt, mitigation, encoding))
        sizes = {**defaults_of(command.run), **arguments, **command.sizes}
        return bytes_of(command.measurement, model, max(counts, default=None), **sizes)

    return memory


class _WithinContext(Unloaded):
    """A model that refuses a task's prompt that is longer than its context."""

    def longest(self, *args: Any, **options: Any) -> LongestPrompt:
        longest = super().longest(*args, **options)
        require_context(longest.tokens, self.shape.context)
        return longest


def _tokens_of(
    model: Unloaded, prompt: Value, mitigation: Mitigation | None, encoding: EncodingOptions
) -> int:
    """The number of tokens of a prompt as a mitigation rewrites it; a question's with its line
    begun. Refuses a prompt that is longer than the model's context.
    """
    if isinstance(prompt, Question):
        longest = model.longest(
            prompt.task, [prompt.length], seed=prompt.seed, mitigation=mitigation, **encoding
        )
        return longest.tokens + longest.answer
    if encoding and not isinstance(prompt, str):
        raise in_tokens_already([*encoding], "token ids")
    require_chat(**encoding)
    text = prompt if isinstance(prompt, str) else None
    rewritten, _ = rewritten_text("--mitigation", text, mitigation, "--task NAME --length N")
    count = replace(model, encoding=encoding).pos(rewritten or prompt)
    require_context(count, model.shape.context)
    return count


def forecast_of(model: str, device: str, dtype: str, memory: Memory) -> Forecast | None:
    """Note the forecast and return it; None where loading the model will say what is wrong.

    Raises `InsufficientMemoryError` for what is forecast not to fit, and what the function of its
    memory refuses. A dry run may be of a GPU that another machine has: it is compared with
    `--max-memory` alone.
    """
    device_type, free = _device_and_free(device)
    load_dtype = None if dtype == AUTO else arithmetic_named(dtype)[0]
    source = locate(model, None, load_dtype)
    loads = load_dtype or source.stored_dtype
    try:
        unloaded = Unloaded(source, loads, device_type, GLOBALS.max_memory)
        _ = unloaded.shape, unloaded.held_bytes
    except (ValueError, OSError, KeyError):
        return None
    forecast = _fitted(unloaded, free, memory)
    work, allowed = forecast.work or 0, GLOBALS.max_memory
    terminal.note(
        f"forecast: {in_gib(forecast.memory)} of memory, {in_gib(forecast.program)} of it the "
        f"program itself, {in_gib(work)} beside the model; its first steps measure the time"
    )
    ways = "take shorter input or fewer lengths, free memory"
    if loads.itemsize > 2:
        ways += ", load the model with --load-dtype bfloat16"
    if allowed is not None and work > allowed:
        raise InsufficientMemoryError(
            f"forecast {in_gib(work)} beside the model, {in_gib(allowed)} allowed by --max-memory: "
            f"allow more, or {ways}"
        )
    if forecast.needed > free:
        raise InsufficientMemoryError(
            f"forecast {in_gib(forecast.memory)}, {in_gib(forecast.memory - work)} of it before "
            f"the work begins, found {in_gib(free)} free: {ways}"
        )
    return forecast


def _device_and_free(device: str) -> tuple[str, int]:
    """The type of the device that a model is loaded onto, and the memory that is free there."""
    if GLOBALS.dry_run and device.partition(":")[0] == "cuda" and not torch.cuda.is_available():
        return "cuda", 2**62  # of a GPU that is not here
    resolved = resolve_device(device)
    return resolved.type, available_memory(resolved)


def _fitted(unloaded: Unloaded, free: int, memory: Memory) -> Forecast:
    """The forecast of the work fitted to what is free beside the model, or as it is."""
    room = free - unloaded.held_bytes
    if unloaded.limit is None and room > 0:
        try:
            return unloaded.forecast(memory(replace(unloaded, limit=room)))
        except InsufficientMemoryError:
            pass
    return unloaded.forecast(memory(unloaded))


def in_gib(size: int) -> str:
    """Bytes in words."""
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 / 10 else f"{size / 2**20:.3g} MiB"
