"""What a command may take: its memory, forecast and told before the model is loaded, and held while it works; its time, by what
is done so far."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from ostools.cli import output
from ostools.cli.global_options import GLOBALS
from ostools.ground.errors import InputError, InsufficientMemoryError, in_words
from ostools.ground.memory import Free, available_memory, free_memory
from ostools.ground.out_of_memory import held_to_what_is_free, is_out_of_memory
from ostools.ground.progress import LONG
from ostools.models.files.sources import locate
from ostools.models.load import resolve_device
from ostools.runs.forecast import Forecast, Unloaded
from ostools.theory.distances import dtype_named

Memory = Callable[[Unloaded], int]
"""Bytes that the work of a command holds beside the model, at its largest step."""
_GIB = 2**30
_HALF = torch.bfloat16
_EARLY = 5.0  # seconds after which what is done says how long the rest takes


class _TooLong(KeyboardInterrupt):
    """The end of work that would take longer than `--max-time`: an interrupt, which nobody takes for a failure of a part."""


class Clock:
    """The progress of the work of a command, on all of its models: it moves the bar, says once where no bar is seen that the
    work is long, and ends work that would take longer than `--max-time`."""

    def __init__(self) -> None:
        self._began = self._nothing_done = time.monotonic()
        self._is_said = False

    def progress(self, doing: str, bar: Callable[[int, int], None]) -> Callable[[int, int], None]:
        """The same progress as `bar`, watched."""

        def told(done: int, total: int) -> None:
            bar(done, total)
            self._look(doing, done, total)

        return told

    def _look(self, doing: str, done: int, total: int) -> None:
        now = time.monotonic()
        if done <= 0:
            self._nothing_done = now
        limit = GLOBALS.max_seconds
        elapsed = now - self._began
        if not 0 < done < total or elapsed < min(_EARLY, limit or _EARLY):
            return
        left = (now - self._nothing_done) * (total - done) / done
        said = f"{100 * done / total:.0f}% done after {in_time(elapsed)}, so about {in_time(elapsed + left)} in all"
        if limit is not None and elapsed + left > limit:
            fits = 100 * done / total * limit / elapsed
            raise _TooLong(
                f"{said}, which is longer than --max-time: about {fits:.0f}% of it would fit (a shorter "
                f"prompt, fewer lengths, a faster machine); or give --max-time {_twice(elapsed + left)}"
            )
        if not self._is_said and elapsed + left > LONG and not output.shows_bar():
            self._is_said = True
            output.note(f"{doing}: {said}")


@contextmanager
def within_time() -> Iterator[None]:
    """Where the work would take too long, the one line that says so (`InputError`)."""
    try:
        yield
    except _TooLong as error:
        raise InputError(str(error)) from None


def require_counted(doing: str) -> None:
    """Refuse `--max-time` of work that has no steps to count (`InputError`)."""
    if GLOBALS.max_seconds is not None:
        raise InputError(
            f"--max-time: expected work whose steps are counted, found {doing}, which is a few passes: leave it out"
        )


def foreseen(model: str, device: str, dtype: str, memory: Memory) -> Forecast | None:
    """The forecast, told; None where there can be none: what is wrong is said when the model is loaded or the work begins.

    Raises `InsufficientMemoryError` for what is forecast not to fit.
    """
    where = resolve_device(device)
    source, free = locate(model, None, GLOBALS.base), _free(where)
    unloaded = Unloaded(source, dtype_named(dtype), where.type, GLOBALS.device_map, GLOBALS.max_memory)
    try:
        found = _fitted(unloaded, free, memory)
    except InsufficientMemoryError:
        raise
    except (ValueError, OSError, KeyError):
        return None
    output.note(
        f"forecast: {in_gib(found.memory)} of memory, {in_gib(_work(found))} of it beside the model; its first steps measure "
        "the time"
    )
    _require_memory(unloaded, found, free, memory)
    return found


def _work(found: Forecast) -> int:
    return found.work or 0


def _fitted(unloaded: Unloaded, free: Free, memory: Memory) -> Forecast:
    """Of the way that the work goes within what is free beside the model; where none does, of the one it goes elsewhere."""
    left = free.bytes - unloaded.held_bytes
    if unloaded.limit is None and left > 0:
        try:
            return unloaded.forecast(memory(replace(unloaded, limit=left)))
        except InsufficientMemoryError:
            pass
    return unloaded.forecast(memory(unloaded))


def in_gib(size: int) -> str:
    return f"{size / _GIB:.2f} GiB" if size >= _GIB / 10 else f"{size / 2**20:.0f} MiB"


def in_time(seconds: float) -> str:
    """How long, in words."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _twice(seconds: float) -> str:
    """Twice as much, as the option takes it: the rest may be slower."""
    return in_time(2 * seconds).replace(" ", "")


def _free(where: torch.device) -> Free:
    """What is free there, the memory that this process holds already among it."""
    if where.type == "cuda":
        return Free(available_memory(where), f"on {where}")
    return free_memory()


def _require_memory(unloaded: Unloaded, found: Forecast, free: Free, memory: Memory) -> None:
    if GLOBALS.max_memory is not None and _work(found) > GLOBALS.max_memory:
        raise InsufficientMemoryError(
            f"forecast {in_gib(_work(found))} beside the model, {in_gib(GLOBALS.max_memory)} allowed by --max-memory: shorten "
            f"the prompt, take fewer lengths, or allow more"
        )
    if found.beside_libraries > free.bytes:
        raise InsufficientMemoryError(
            f"forecast {in_gib(found.memory)}, {in_gib(found.memory - _work(found))} of it before the work begins, found "
            f"{free}: {_what_fits(unloaded, free, memory)}"
        )


def _what_fits(unloaded: Unloaded, free: Free, memory: Memory) -> str:
    """What to do: the 16-bit weights where they would fit, else less work or more memory."""
    smaller = (
        "shorten the prompt, take fewer lengths, free memory, leave weights on disk with --device-map auto, or take a machine "
        "with more"
    )
    if unloaded.dtype.itemsize <= 2:
        return smaller
    half = replace(unloaded, dtype=_HALF)
    found = _fitted(half, free, memory)
    fits = ", which fits" if found.beside_libraries <= free.bytes else ""
    return f"loaded in bfloat16 (--load-dtype) it takes {in_gib(found.memory)}{fits}; or {smaller}"


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
        "model in bfloat16 (--load-dtype), or free memory"
    )
