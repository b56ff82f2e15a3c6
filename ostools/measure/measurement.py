"""What holds of every call that measures: its arguments are what it takes, a small model has one thread, a long one a bar."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from transformer_lens.model_bridge import TransformerBridge

from hooks.errors import checked_arguments
from ostools.ground.errors import InputError
from ostools.ground.progress import bar, told_here
from ostools.measure.several import one_of_several
from ostools.models.describe import IN_WORDS
from ostools.models.shape import enough_threads

Asked = ParamSpec("Asked")
Found = TypeVar("Found")


def measurement(function: Callable[Asked, Found]) -> Callable[Asked, Found]:
    """The function, which refuses arguments of another type with `InputError` before it does anything.

    While it runs torch has as many threads as its model is worth (`enough_threads`). Where it takes `progress` and is given
    none, a bar is drawn in a terminal or a notebook; `progress=False` silences it.
    """
    tells = "progress" in inspect.signature(function).parameters

    @checked_arguments(InputError, IN_WORDS, one_of_several)
    @functools.wraps(function)
    def called(*args: Asked.args, **options: Asked.kwargs) -> Found:
        models = [value for value in (*args, *options.values()) if isinstance(value, TransformerBridge)]
        with enough_threads(models), told_here() as first:
            if not (tells and first and options.get("progress") in (None, True)):
                return function(*args, **options)
            with bar(function.__name__) as progress:
                return function(*args, **{**options, "progress": progress})  # pyright: ignore[reportCallIssue]

    return called
