"""The commands: `ostools VERB [WHAT]`, each with the public function that it runs.

`commands.json` holds what the functions say of themselves: parameters, defaults, help, examples. `python -m scripts.commands`
writes it from the imported functions, and a test holds the two against each other. The modules of the measurements import
torch, which takes seconds; this file is read in milliseconds, so `--help` answers at once.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

UNKNOWN: Any = object()
"""Stands for a default that no command line can spell, or for none."""


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


@dataclass(frozen=True, eq=False)
class Command:
    """One command, and the function of ostools that it runs.

    name: the words of the command line. function, memory: "module:function"; `run` and `count_memory` import them.
    examples: options of its examples, a text each.
    defaults: values, as they would be written, of parameters that Python requires.
    renamed: options that have another name than their parameter.
    python_only: parameters that are no options, each with the reason.
    fixed: arguments that the command gives itself.
    choices: what a parameter's names are called, and the names, where they are known without a model.
    hosted: a model that runs elsewhere may answer; `of_questions` are the parameters that it leaves to choose.
    loads_model: the function loads its model itself, and is given what was written.
    draws: the result is saved by --out. measures: it runs a measurement, and gives a result.
    """

    name: str
    function: str
    summary: str
    parameters: tuple[Parameter, ...] = ()
    description: str = ""
    examples: tuple[str, ...] = ()
    defaults: Mapping[str, str] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    python_only: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    choices: Mapping[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    hosted: str | None = None
    of_questions: tuple[str, ...] = ()
    memory: str = ""
    loads_model: bool = False
    draws: bool = True
    measures: bool = True

    @cached_property
    def words(self) -> tuple[str, ...]:
        """The name, word by word."""
        return tuple(self.name.split(" "))

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of the function's parameters."""
        return frozenset(parameter.name for parameter in self.parameters)

    @property
    def example_lines(self) -> tuple[str, ...]:
        """Command lines to type."""
        return tuple(f"ostools {self.name} {options}".rstrip() for options in self.examples)

    @property
    def run(self) -> Callable[..., Any]:
        """The function; its module is imported now."""
        return _imported(self.function)

    @property
    def count_memory(self) -> Callable[..., int]:
        """The function that counts the bytes of its work; its module is imported now."""
        return _imported(self.memory)


def _imported(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def _read_command(stored: Mapping[str, Any]) -> Command:
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in stored.items()
    }
    fields["parameters"] = tuple(_read_parameter(**parameter) for parameter in stored.get("parameters", ()))
    fields["choices"] = {name: (kind, tuple(names)) for name, (kind, names) in stored.get("choices", {}).items()}
    return Command(**fields)


def _read_parameter(default: Any = UNKNOWN, line: str = "", by_place: bool = False, **fields: Any) -> Parameter:
    if isinstance(default, dict):
        default = range(*default["range"])
    default = tuple(default) if isinstance(default, list) else default
    return Parameter(default=default, line=line, by_place=by_place, required=fields.pop("required", False), **fields)


_STORED = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
VERBS: Mapping[str, str] = _STORED["verbs"]
"""The fourteen verbs with what each does, in the order of `ostools --help`."""
COMMANDS = {command.words: command for command in map(_read_command, _STORED["commands"])}
"""Every command by its words, in the order of the verbs."""
MEASURED = tuple(command for command in COMMANDS.values() if command.measures)
"""The commands that measure, and give a result."""
