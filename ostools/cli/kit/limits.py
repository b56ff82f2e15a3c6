"""What a command may take: forecast and told before the model is loaded, and held while it works."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from ostools.cli.kit import output
from ostools.cli.kit.manners import MANNERS
from ostools.ground.errors import InputError, InsufficientMemoryError, in_words
from ostools.ground.memory import Free, available_memory, free_memory
from ostools.ground.out_of_memory import held_to_what_is_free, is_out_of_memory
from ostools.measure.passes.cost import Cost
from ostools.models.files.sources import locate
from ostools.models.load import resolve_device
from ostools.runs.forecast.forecast import Forecast, Unloaded, in_time
from ostools.theory.distances import dtype_named

_GIB = 2**30
_HALF = torch.bfloat16
_START = Cost(operations=900_000.0)
"""What a command does after its forecast and before it loads a model: it reads the libraries that run one."""


def foreseen(model: str, device: str, dtype: str, cost: Callable[[Unloaded], Cost]) -> Forecast | None:
    """The forecast, told; None where there can be none: what is wrong is said when the model is loaded or the work begins.

    Raises `InsufficientMemoryError` for what is forecast not to fit.
    """
    where = resolve_device(device)
    source, free = locate(model, None, MANNERS.base), _free(where)
    unloaded = Unloaded(source, dtype_named(dtype), where.type, MANNERS.device_map, MANNERS.max_memory)
    try:
        found = _fitted(unloaded, free, cost)
    except InsufficientMemoryError:
        raise
    except (ValueError, OSError, KeyError):
        return None
    output.note(
        f"forecast: {in_gib(found.memory)} of memory, {in_gib(found.work)} of it beside the model; {found.time}"
    )
    _require_memory(unloaded, found, free, cost)
    return found


def require_time(*forecasts: Forecast | None) -> None:
    """Refuse a command whose work on all its models together is forecast to take longer than `--max-time` (`InputError`)."""
    known = [found.seconds for found in forecasts if found is not None and found.seconds is not None]
    whole = sum(known)
    if whole > MANNERS.max_seconds:
        together = f" for {len(known)} models together" if len(known) > 1 else ""
        raise InputError(
            f"forecast {in_time(whole)}{together}, which is longer than --max-time: give --max-time {_asked(whole)} to begin "
            "it all the same, a shorter prompt, fewer lengths, or a faster machine"
        )


def _fitted(unloaded: Unloaded, free: Free, cost: Callable[[Unloaded], Cost]) -> Forecast:
    """Of the way that the work goes within what is free beside the model; where none does, of the one it goes elsewhere."""
    left = free.bytes - unloaded.held
    if unloaded.limit is None and left > 0:
        try:
            return unloaded.forecast(_START + cost(replace(unloaded, limit=left)))
        except InsufficientMemoryError:
            pass
    return unloaded.forecast(_START + cost(unloaded))


def in_gib(size: int) -> str:
    return f"{size / _GIB:.2f} GiB" if size >= _GIB / 10 else f"{size / 2**20:.0f} MiB"


def _asked(seconds: float) -> str:
    """Twice as much, in hours: a forecast may be off."""
    return f"{max(1, round(2 * seconds / 3600))}h"


def _free(where: torch.device) -> Free:
    """What is free there, the memory that this process holds already among it."""
    if where.type == "cuda":
        return Free(available_memory(where), f"on {where}")
    return free_memory()


def _require_memory(unloaded: Unloaded, found: Forecast, free: Free, cost: Callable[[Unloaded], Cost]) -> None:
    if MANNERS.max_memory is not None and found.work > MANNERS.max_memory:
        raise InsufficientMemoryError(
            f"forecast {in_gib(found.work)} beside the model, {in_gib(MANNERS.max_memory)} allowed by --max-memory: shorten "
            f"the prompt, take fewer lengths, or allow more"
        )
    if found.beside_libraries > free.bytes:
        raise InsufficientMemoryError(
            f"forecast {in_gib(found.memory)}, {in_gib(found.memory - found.work)} of it before the work begins, found {free}: "
            f"{_what_fits(unloaded, free, cost)}"
        )


def _what_fits(unloaded: Unloaded, free: Free, cost: Callable[[Unloaded], Cost]) -> str:
    """What to do: the 16-bit weights where they would fit, else less work or more memory."""
    smaller = (
        "shorten the prompt, take fewer lengths, free memory, leave weights on disk with --device-map auto, or take a machine "
        "with more"
    )
    if unloaded.dtype.itemsize <= 2:
        return smaller
    half = replace(unloaded, dtype=_HALF)
    found = _fitted(half, free, cost)
    fits = ", which fits" if found.beside_libraries <= free.bytes else ""
    return f"loaded in bfloat16 (--dtype, or --load-dtype) it takes {in_gib(found.memory)}{fits}; or {smaller}"


@contextmanager
def within_limits(device: str, forecast: Forecast | None) -> Iterator[None]:
    """Within the block no more memory is given than is free; where that runs out, one line that says what was forecast."""
    where = resolve_device(device)
    try:
        with held_to_what_is_free(where.type):
            yield
    except Exception as error:
        if isinstance(error, InsufficientMemoryError) or not is_out_of_memory(error):
            raise
        raise _out_of_memory(error, forecast, where) from None


def _out_of_memory(error: Exception, forecast: Forecast | None, where: torch.device) -> InsufficientMemoryError:
    expected = "" if forecast is None else f" forecast {in_gib(forecast.memory)},"
    return InsufficientMemoryError(
        f"out of memory:{expected} found {_free(where)} ({in_words(error)}): shorten the prompt, take fewer lengths, load the "
        "model in bfloat16 (--dtype, or --load-dtype), or free memory"
    )
