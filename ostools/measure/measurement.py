"""Decorator of every measurement: checked arguments, the model's lock, torch at its defaults, progress of a long call."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, ParamSpec, TypeVar

from transformer_lens.model_bridge import TransformerBridge

import hooks
from hooks.errors import checked_arguments
from ostools.ground.errors import InputError
from ostools.ground.progress import cheaper_ways, outermost, watched
from ostools.ground.records import Record
from ostools.measure.prompts import one_of_several
from ostools.models.describe import IN_WORDS, checked_once
from ostools.models.precision.torch_state import default_torch_state
from ostools.models.shape import enough_threads

Arguments = ParamSpec("Arguments")
Measured = TypeVar("Measured")


def measurement(**record: Any) -> Callable[[Callable[Arguments, Measured]], Callable[Arguments, Measured]]:
    """Make a measurement of a function; `record` holds the fields of its `ostools.ground.records.Record`.

    - An argument of another type is refused with `InputError` before anything is computed.
    - It holds the lock of every model it is given (`hooks.locked`): another thread that wants the model waits.
    - Torch is at its defaults (`default_torch_state`), so autocast, a default dtype or inference mode around the call changes
      no number. Torch has as many threads as the model is worth (`enough_threads`).
    - A call that takes long says so: a bar in a terminal or a notebook if the function takes `progress`, else one line by
      `logging`, with what would make it cheaper. `progress=False` silences both.
    """
    Record(**record)  # a misspelt field fails at import
    return _measured


def _measured(function: Callable[Arguments, Measured]) -> Callable[Arguments, Measured]:
    signature = inspect.signature(function)
    parameters = signature.parameters

    @checked_arguments(InputError, IN_WORDS, one_of_several)
    @functools.wraps(function)
    def measured(*args: Arguments.args, **options: Arguments.kwargs) -> Measured:
        models = {id(value): value for value in (*args, *options.values()) if isinstance(value, TransformerBridge)}
        with ExitStack() as stack:
            for key in sorted(models):  # in one order, so that two threads with two models do not wait for each other
                stack.enter_context(hooks.locked(models[key]))
            stack.enter_context(default_torch_state())
            stack.enter_context(enough_threads(models.values()))
            stack.enter_context(checked_once())
            if not stack.enter_context(outermost()) or options.get("progress") not in (None, True):
                return function(*args, **options)
            bound = signature.bind(*args, **options)
            bound.apply_defaults()
            cheaper = ", ".join(cheaper_ways(bound.arguments))
            progress = stack.enter_context(watched(function.__name__, cheaper, counts_steps="progress" in parameters))
            progress_option = {"progress": progress} if "progress" in parameters else {}
            return function(*args, **{**options, **progress_option})  # pyright: ignore[reportCallIssue]

    return measured
