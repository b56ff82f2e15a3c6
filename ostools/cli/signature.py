"""Read a function's signature and docstring from its source file, by `ast`, without importing it.

The modules of the measurements import torch, which takes seconds. Libraries that build a command line from functions
(cyclopts, tyro) import a function to read it, so `ostools VERB --help` would take those seconds too. Here one file is
parsed: some milliseconds.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

_ROOT = Path(__file__).parents[2]
UNKNOWN: Any = object()
"""Stands for a default that the source does not spell out, or for none."""


@dataclass(frozen=True)
class Parameter:
    """One parameter: its annotation as written, its default, and its line of the docstring.

    `by_place`: it may be given without its name, as those before `*`.
    """

    name: str
    annotation: str
    required: bool
    default: Any
    line: str
    by_place: bool


@dataclass(frozen=True)
class Signature:
    """The parameters of a function, and its docstring before and after `Args:`."""

    summary: str
    description: str
    parameters: tuple[Parameter, ...]

    @property
    def names(self) -> set[str]:
        """The names of the parameters."""
        return {parameter.name for parameter in self.parameters}


def imported(target: str) -> Any:
    """The function or constant `target`, written "package.module:name"; its module is imported now."""
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def names_in(target: str) -> Any:
    """The names in the constant `target`, read from its source; imported where the source does not spell them out."""
    names = _constant(*target.split(":"))
    return imported(target) if names is UNKNOWN else names


Function = TypeVar("Function", bound=Callable[..., Any])


def with_options_of(target: str, *without: str) -> Callable[[Function], Function]:
    """Decorate a function whose `**options` are further parameters of `target`.

    without: parameters of `target` that are no options.
    """
    return lambda function: function


@cache
def signature_of(target: str) -> Signature:
    """Signature of the function `target`, written "package.module:function"."""
    module, _, name = target.partition(":")
    functions = [part for part in _tree(module).body if isinstance(part, ast.FunctionDef) and part.name == name]
    function = functions[-1]  # those before it are overloads
    summary, description, lines = _parts(ast.get_docstring(function) or "")
    parameters = [*_parameters(function.args, module, lines), *_keyword_group(function.args.kwarg, module)]
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "with_options_of":
            source, *without = map(ast.literal_eval, decorator.args)
            hidden = {*without, *(parameter.name for parameter in parameters)}
            further = signature_of(source).parameters
            parameters += [parameter for parameter in further if parameter.name not in hidden]
    return Signature(summary, description, tuple(parameters))


@cache
def _tree(module: str) -> ast.Module:
    path = _ROOT.joinpath(*module.split("."))
    return ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8"))


def _parameters(arguments: ast.arguments, module: str, lines: dict[str, str]) -> Iterator[Parameter]:
    by_place = [*arguments.posonlyargs, *arguments.args]
    missing: list[ast.expr | None] = [None] * (len(by_place) - len(arguments.defaults))
    defaults = [*missing, *arguments.defaults, *arguments.kw_defaults]
    for argument, default in zip([*by_place, *arguments.kwonlyargs], defaults, strict=True):
        yield Parameter(
            argument.arg,
            ast.unparse(argument.annotation) if argument.annotation else "",
            default is None,
            UNKNOWN if default is None else _value(default, module),
            lines.get(argument.arg, ""),
            argument in by_place,
        )


def _keyword_group(arguments: ast.arg | None, module: str) -> list[Parameter]:
    """The keywords of `**options: Unpack[SomeTypedDict]`, as `hooks.errors.full_signature` has them; else none."""
    if arguments is None or not isinstance(arguments.annotation, ast.Subscript):
        return []
    name, home = ast.unparse(arguments.annotation.slice), module
    while not (group := [part for part in _tree(home).body if isinstance(part, ast.ClassDef) and part.name == name]):
        imported_from = _imported(home, name)
        if imported_from is None:
            raise LookupError(f"{module} unpacks {name}, which it does not import")
        home, name = imported_from
    _, _, lines = _parts(ast.get_docstring(group[0]) or "")
    fields = [(part.target, ast.unparse(part.annotation)) for part in group[0].body if isinstance(part, ast.AnnAssign)]
    return [
        Parameter(target.id, kind, False, False if kind == "bool" else None, lines.get(target.id, ""), False)
        for target, kind in fields
        if isinstance(target, ast.Name)
    ]


def _value(expression: ast.expr, module: str) -> Any:
    """Value of a literal, of a constant of this package, or of a range; `UNKNOWN` for others."""
    match expression:
        case ast.Name(id=name):
            return _constant(module, name)
        case ast.Attribute(value=ast.Name(id=owner), attr=name):
            home = _imported(module, owner)
            return UNKNOWN if home is None else _constant(f"{home[0]}.{home[1]}", name)
        case ast.Call(func=ast.Name(id="range"), args=numbers):
            bounds = [_value(number, module) for number in numbers]
            return UNKNOWN if UNKNOWN in bounds else range(*bounds)
        case ast.Call(func=ast.Name(id="tuple" | "list" | "get_args"), args=[content]):
            return _value(content, module)
        case ast.Subscript(value=ast.Name(id="Literal"), slice=ast.Tuple() as content):
            return _value(content, module)
        case ast.Dict(keys=keys) if all(isinstance(key, ast.Constant) for key in keys):
            return tuple(ast.literal_eval(key) for key in keys if key)
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            values = tuple(_value(part, module) for part in parts)
            return UNKNOWN if UNKNOWN in values else values
    try:
        return ast.literal_eval(expression)
    except ValueError:
        return UNKNOWN


def _constant(module: str, name: str) -> Any:
    """Value that a module of this package gives a name, there or where it imports it from."""
    if not module.startswith("ostools."):
        return UNKNOWN
    for part in _tree(module).body:
        targets = part.targets if isinstance(part, ast.Assign) else []
        targets = [part.target] if isinstance(part, ast.AnnAssign) else targets
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return _value(part.value, module)  # pyright: ignore
    home = _imported(module, name)
    return UNKNOWN if home is None else _constant(*home)


def _imported(module: str, name: str) -> tuple[str, str] | None:
    for part in _tree(module).body:
        if isinstance(part, ast.ImportFrom) and part.module and not part.level:
            for alias in part.names:
                if name == (alias.asname or alias.name):
                    return part.module, alias.name
    return None


def _parts(text: str) -> tuple[str, str, dict[str, str]]:
    """The first paragraph, what follows it, and the first sentence of each entry of `Args:`."""
    before, _, after = text.partition("\nArgs:\n")
    entries, _, _ = after.partition("\n\n")
    summary, _, description = before.partition("\n\n")
    return _flat(summary), description.strip(), dict(_entries(entries))


def _entries(text: str) -> Iterator[tuple[str, str]]:
    """Names and first sentences; an entry may have several names: "system, thinking: ..."."""
    for entry in re.split(r"\n(?=    \S)", f"\n{text}"):
        names, colon, text = entry.strip().partition(": ")
        if colon and all(name.isidentifier() for name in names.split(", ")):
            yield from ((name, _first_sentence(_flat(text))) for name in names.split(", "))


def _first_sentence(text: str) -> str:
    """Text up to the first full stop that ends a sentence, without that stop."""
    end = re.search(r"(?<!\be\.g)(?<!\bi\.e)[.](?=\s+[A-Z\"`(]|$)", text)
    return text[: end.start()] if end else text


def _flat(text: str) -> str:
    return " ".join(text.split())
