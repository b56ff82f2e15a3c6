"""A trial run of a chat template, which counts the work before transformers does it without a limit.

A template is a program of a stranger's: a few characters of it can write a text of a gigabyte, loop for ever, or draw at
random. The trial runs it in transformers' own environment, with every operation that makes a text, and every turn of a loop,
counted first. What transformers writes afterwards is what is measured.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sized
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache, wraps
from itertools import islice
from typing import Any, NoReturn

import jinja2
import jinja2.meta
from jinja2 import nodes
from jinja2.compiler import CodeGenerator
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer
from transformers.utils.chat_template_utils import _compile_jinja_template

from ostools.ground.errors import InputError

_LONGEST = 1 << 20
"""Characters of a template; the longest published ones have some 20,000."""
_LEAST_WORK, _WORK = 2_000_000, 200
"""Characters that a template may make in all: of any text, and for each character of the messages."""
_AT_ONCE = 10_000_000
"""Characters that one operation may make."""
_MULTIPLYING = ("replace", "join", "translate", "indent", "wordwrap", "urlize", "tojson")
"""Operations that put one text many times into another."""
_FORMATS = ("format", "do_format", "format_map", "strftime_now")
"""Operations whose first text is a format, which may name widths."""
_WIDTH_OF_AN_ARGUMENT = re.compile(r"\{[^{}]*:[^{}]*\{|%[^a-zA-Z%]*\*")


@dataclass
class _Budget:
    """The work that is left to a trial, in characters and turns of a loop."""

    remaining: int | float

    def take(self, work: int | float) -> None:
        self.remaining -= work
        if self.remaining < 0 or work > _AT_ONCE:
            raise InputError(
                "expected a chat template that writes a text about as long as the message, found one that makes far longer "
                "ones or does not end: use the model's own template, or leave chat out"
            )


_budget: ContextVar[_Budget] = ContextVar("budget")


def try_template(template: str, messages: list[dict[str, str]], variables: Mapping[str, Any]) -> None:
    """Run a template on these messages, as `apply_chat_template` would with these `variables`, within limits.

    Raises `InputError` for one that is too deeply nested, that makes too much text, or that draws at random. Whatever
    else it raises, transformers will raise too.
    """
    length = sum(len(text) for message in messages for text in message.values())
    before = _budget.set(_Budget(_LEAST_WORK + _WORK * length))
    try:
        run = _compiled(template).generate(
            messages=messages, tools=None, documents=None, add_generation_prompt=True, **variables
        )
        for piece in run:
            _budget.get().take(len(piece))
    except InputError:
        raise
    except (RecursionError, MemoryError):
        raise InputError(
            "expected a chat template that can be read, found one that is nested too deeply: use the model's own template, or "
            "leave chat out"
        ) from None
    except Exception:  # a refusal of the template's own, which is told of where it is written in earnest
        return
    finally:
        _budget.reset(before)


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


@lru_cache(maxsize=32)
def _compiled(template: str) -> jinja2.Template:
    return _environment().from_string(template)


@lru_cache(maxsize=1)
def _environment() -> _Counting:
    library_environment = _compile_jinja_template("").environment
    environment = _Counting(
        trim_blocks=library_environment.trim_blocks,
        lstrip_blocks=library_environment.lstrip_blocks,
        extensions=[type(extension) for extension in library_environment.extensions.values()],
    )
    environment.filters |= {name: _counting_calls(call) for name, call in library_environment.filters.items()}
    environment.filters |= {"random": _refuse_random, _TURNS: _turns, _READ: _counted_text}
    environment.tests |= {name: _counting_calls(call) for name, call in library_environment.tests.items()}
    environment.finalize = _counted_text
    environment.globals |= library_environment.globals | {"lipsum": _refuse_random}
    return environment


class _Generator(CodeGenerator):
    """Writes `a ~ b` as a call, which can be counted."""

    def visit_Concat(self, node: nodes.Concat, frame: Any) -> None:  # noqa: N802 (jinja's name)
        self.write("environment.joined((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


_TURNS, _READ = "ostools_turns", "ostools_read"


class _CountedNodes(NodeTransformer):
    """Puts a filter that counts behind what a loop goes through, and behind what is compared, searched or sliced."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 (jinja's name)
        node.iter = _filtered(node.iter, _TURNS)
        return self.generic_visit(node)

    def visit_Operand(self, node: nodes.Operand) -> nodes.Node:  # noqa: N802 (jinja's name)
        node.expr = _filtered(node.expr, _READ)
        return self.generic_visit(node)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802 (jinja's name)
        if isinstance(node.arg, nodes.Slice):
            node.node = _filtered(node.node, _READ)
        return self.generic_visit(node)


def _filtered(node: Any, name: str) -> nodes.Expr:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class _Counting(ImmutableSandboxedEnvironment):
    """transformers' environment for chat templates, in which each operation is counted before it is done."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})
    code_generator_class = _Generator

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return _CountedNodes().visit(super()._parse(source, name, filename)).set_environment(self)

    @staticmethod
    def concat(parts: Iterable[str]) -> str:
        pieces = list(parts)
        _take(sum(map(len, pieces)))
        return "".join(pieces)

    def joined(self, parts: tuple[Any, ...]) -> str:
        _take(_size(parts))
        return self.concat([str(part) for part in parts])

    def call_binop(self, context: Any, operator: str, left_operand: Any, right_operand: Any) -> Any:
        if operator == "+":
            _take(_size(left_operand) + _size(right_operand))
        elif operator == "**":
            _take(abs(right_operand) * _bits(left_operand) if isinstance(right_operand, int) else 1)
        else:
            _take(
                _most(
                    "format" if operator == "%" and isinstance(left_operand, str) else operator,
                    (left_operand, right_operand),
                )
            )
        return super().call_binop(context, operator, left_operand, right_operand)

    def call(self, context: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        method = getattr(function, "__wrapped__", function)  # the sandbox wraps str.format
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        _take(_most(name, (owner, *args, *kwargs.values())))
        return super().call(context, function, *args, **kwargs)


def _counting_calls(call: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(call)
    def counting(*args: Any, **kwargs: Any) -> Any:
        _take(_most(getattr(call, "__name__", ""), (*args, *kwargs.values())))
        return call(*args, **kwargs)

    return counting


def _counted_text(value: Any) -> Any:
    """What is written, before it is made a text; what is compared, searched or sliced."""
    _take(_size(value))
    return value


def _turns(values: Any) -> Any:
    if not isinstance(values, Sized) and isinstance(values, Iterable):
        values = list(islice(values, _AT_ONCE))
    _take(len(values) if isinstance(values, Sized) else 1)
    return values


def _take(work: int | float) -> None:
    _budget.get().take(10 + work)  # a call takes as long as some characters


def _most(name: str, values: tuple[Any, ...]) -> int | float:
    """The most characters that an operation of that name may make of these arguments."""
    sizes = [_size(value) for value in values if isinstance(value, str | list | tuple | dict)]
    numbers = [abs(value) for value in values if isinstance(value, int) and not isinstance(value, bool)]
    if name in _FORMATS:
        text = _formatted(next((value for value in values if isinstance(value, str)), ""), sum(sizes))
    else:
        text = math.prod(sorted(sizes)[-2:]) if name.endswith(_MULTIPLYING) else sum(sizes)
    return max(1, text) * math.prod(max(1, number) for number in numbers)


def _formatted(form: str, size: int) -> int | float:
    """The most characters that a format makes of arguments of that size: every number in it may be a width, and every place
    may take all of them."""
    if _WIDTH_OF_AN_ARGUMENT.search(form):
        return math.inf
    widths = sum(int(digits) if len(digits) < 9 else math.inf for digits in re.findall(r"\d+", form))
    return widths + size * (1 + form.count("{") + form.count("%"))


def _size(value: Any) -> int:
    """Characters of a value once it is written, as far as `_AT_ONCE` of them."""
    total, parts = 0, [value]
    while parts and total <= _AT_ONCE:
        part = parts.pop()
        if isinstance(part, str):
            total += len(part)
        elif isinstance(part, list | tuple | dict):
            total += len(part)
            parts.extend(part if total <= _AT_ONCE else ())
            parts.extend(part.values() if isinstance(part, dict) else ())
        else:
            total += _bits(part)
    return total


def _bits(value: Any) -> int:
    return value.bit_length() if isinstance(value, int) else 1


def _refuse_random(*args: Any, **kwargs: Any) -> NoReturn:
    raise InputError(
        "expected a chat template that writes the same text each time, found one that draws at random: use the model's own "
        "template, or leave chat out"
    )
