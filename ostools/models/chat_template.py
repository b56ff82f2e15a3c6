"""A trial run of a chat template, within limits, before transformers runs it without any.

A template is a program of a stranger's: a few characters of it can write a text of a gigabyte, loop for ever, or draw at
random. The trial runs it in transformers' own environment, with a limit on time and on the length of texts.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from types import FrameType
from typing import Any, NoReturn

import jinja2
import jinja2.meta
from jinja2.sandbox import ImmutableSandboxedEnvironment
from transformers.utils.chat_template_utils import _compile_jinja_template

from ostools.ground.errors import InputError

_LONGEST = 1 << 20
"""Characters of a template; the longest published ones have some 20,000."""
_LEAST_TEXT, _GROWTH = 2_000_000, 200
"""Characters that a template may write: of any message, and for each of its characters."""
_SECONDS = 0.5
"""Seconds of this thread that the trial may take; published templates take milliseconds."""


def try_template(template: str, messages: list[dict[str, str]], variables: Mapping[str, Any]) -> None:
    """Run a template on these messages, as `apply_chat_template` would with these `variables`, within limits.

    Raises `InputError` for one that is too deeply nested, that makes too much text, or that draws at random. Whatever
    else it raises, transformers will raise too.
    """
    room = _LEAST_TEXT + _GROWTH * sum(len(text) for message in messages for text in message.values())
    options = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": True}
    try:
        with _limited_time():
            for piece in _environment().from_string(template).generate(**options, **variables):
                room -= len(piece)
                if room < 0:
                    _refuse_length()
    except InputError:
        raise
    except (RecursionError, MemoryError):
        raise InputError(
            "expected a chat template that can be read, found one that is nested too deeply: use the model's own template, or "
            "leave chat out"
        ) from None
    except Exception:  # a refusal of the template's own, which is told of where it is written in earnest
        return


def variables_of(template: str) -> frozenset[str]:
    """The names that a template takes from whoever runs it."""
    if len(template) > _LONGEST:
        raise InputError(f"expected a chat template of at most {_LONGEST} characters, found {len(template)}")
    try:
        return frozenset(jinja2.meta.find_undeclared_variables(_environment().parse(template)))
    except (jinja2.TemplateError, RecursionError, MemoryError) as error:
        raise InputError(
            f"expected a chat template that can be read, found: {' '.join(str(error).split())[:300]}"
        ) from None


@contextmanager
def _limited_time() -> Iterator[None]:
    """Refuse, at its next line, a template that runs too long."""
    end, before = time.thread_time() + _SECONDS, sys.gettrace()

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename != "<template>":
            return None
        if time.thread_time() > end:
            _refuse_length()
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


class _Limited(ImmutableSandboxedEnvironment):
    """transformers' environment for chat templates, in which an operator makes no text of more than `_LEAST_TEXT`."""

    intercepted_binops = frozenset({"+", "*", "**"})

    def call_binop(self, context: Any, operator: str, left_operand: Any, right_operand: Any) -> Any:
        operands = left_operand, right_operand
        first, second = (len(value) if isinstance(value, str | list | tuple) else value for value in operands)
        if isinstance(first, int) and isinstance(second, int) and (operator == "**" or (first, second) != operands):
            length = {"+": first + second, "*": first * second, "**": first.bit_length() * second}[operator]
            if length > _LEAST_TEXT:
                _refuse_length()
        return super().call_binop(context, operator, left_operand, right_operand)


@lru_cache(maxsize=1)
def _environment() -> _Limited:
    own = _compile_jinja_template("").environment
    extensions = [type(extension) for extension in own.extensions.values()]
    environment = _Limited(trim_blocks=own.trim_blocks, lstrip_blocks=own.lstrip_blocks, extensions=extensions)
    environment.filters |= own.filters | {"random": _refuse_random}
    environment.globals |= own.globals | {"lipsum": _refuse_random}
    return environment


def _refuse_length() -> NoReturn:
    raise InputError(
        "expected a chat template that writes a text about as long as the message, found one that makes far longer ones or "
        "does not end: use the model's own template, or leave chat out"
    )


def _refuse_random(*args: Any, **kwargs: Any) -> NoReturn:
    raise InputError(
        "expected a chat template that writes the same text each time, found one that draws at random: use the model's own "
        "template, or leave chat out"
    )
