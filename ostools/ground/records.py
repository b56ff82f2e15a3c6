"""The record of every measurement: what its function says of itself in `@measurement(...)`.

    @measurement(command="sensitivity attribution", examples=('--prompt "Once upon a" --out parts.png',))
    def attribution(model, prompt, *, logit=None, ...) -> Attribution: ...

`records()` reads them from the source files by `ast`. No module of a measurement is imported, because those import torch:
`ostools --help` walks the records, and answers at once.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).parents[1]
_FLOORS = ("measure", "experiments", "sweep")
_DECORATOR = "@measurement("


@dataclass(frozen=True, eq=False)
class Record:
    """What the command of a measurement cannot read from the function's signature and docstring.

    command: its words on the command line, "" for none.
    examples: options of its examples, a text each.
    defaults: values, as they would be written, of parameters that Python requires.
    renamed: options that have another name than their parameter.
    python_only: parameters that are no options, each with the reason.
    lines_of: functions, "module:function" in ostools, whose docstrings have the lines of parameters handed on to them.
    hosted: a function of `ostools.cli.verbs.hosted` that makes the questions for a model that runs elsewhere.
    of_questions: the parameters that such a model leaves to choose.
    memory: the function of ostools that says how many bytes it holds beside a model (`measure.unloaded`).
    parameters: the names of the function's parameters, which are read with the rest.
    sweep: what a sweep does with it, an `ostools.measure.swept.Swept` written "module:NAME"; "" where no sweep can ask it.
    """

    command: str = ""
    examples: tuple[str, ...] = ()
    defaults: Mapping[str, str] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    python_only: Mapping[str, str] = field(default_factory=dict)
    lines_of: tuple[str, ...] = ()
    hosted: str | None = None
    of_questions: tuple[str, ...] = ()
    memory: str = ""
    parameters: tuple[str, ...] = ()
    sweep: str = ""


@cache
def records() -> Mapping[str, Record]:
    """Records by their function, written "module:function" in ostools, such as "measure.bounds.bounds:bounds"."""
    return dict(sorted(_read_all(), key=lambda target_and_record: target_and_record[0]))


def function_named(name: str) -> Any:
    """The measurement of that name; its module is imported now."""
    module = next(module for module, _, function in (target.partition(":") for target in records()) if function == name)
    return getattr(importlib.import_module(f"ostools.{module}"), name)


def _read_all() -> Iterator[tuple[str, Record]]:
    for floor in _FLOORS:
        for file in (_PACKAGE / floor).rglob("*.py"):
            text = file.read_text(encoding="utf-8")
            if _DECORATOR in text:
                module = ".".join(file.relative_to(_PACKAGE).with_suffix("").parts)
                yield from ((f"{module}:{name}", record) for name, record in _read(text))


def _read(text: str) -> Iterator[tuple[str, Record]]:
    for function in (part for part in ast.parse(text).body if isinstance(part, ast.FunctionDef)):
        for decorator in function.decorator_list:
            match decorator:
                case ast.Call(func=ast.Name(id="measurement"), keywords=keywords):
                    values = {str(part.arg): ast.literal_eval(part.value) for part in keywords}
                    arguments = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
                    names = tuple(argument.arg for argument in arguments)
                    yield function.name, Record(**values, parameters=names)
