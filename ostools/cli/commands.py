"""The commands: `ostools VERB [WHAT]`, each with the public function that it runs.

`commands.json` holds what the functions say of themselves: parameters, defaults, help, examples.
`python -m scripts.commands` writes it from the imported functions, and a test holds the two against
each other. The modules of the measurements import torch, which takes seconds; this file is read in
milliseconds, so `--help` answers at once.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ostools.results import Result

UNKNOWN = object()
"""Stands for a default that no command line can spell, or for none."""


@dataclass(frozen=True)
class Parameter:
    """One parameter of a function, as the command line reads it.

    kind: what is read, by the annotation (`scripts.commands`): model, prompt, task, pairs,
    repeating (a task of such pairs), mitigation, word (one of `words`), names, text, numbers,
    whole, number, places (parts of a model), path, flag, supplied.
    many: a list of them; or_one: or one by itself.
    question: the prompt may be a task's question, and the words are of one.
    """

    name: str
    kind: str
    required: bool = False
    default: object = UNKNOWN
    words: tuple[str, ...] = ()
    many: bool = False
    or_one: bool = False
    question: bool = False

    @property
    def option(self) -> str:
        """The option's word: the parameter's own."""
        return f"--{self.name.replace('_', '-')}"


@dataclass(frozen=True, eq=False)
class Command:
    """One command, and the function of ostools that it runs.

    name: the words of the command line. function: "module:function", which `run` imports.
    checked_by: functions that refuse wrong arguments before a model is loaded (`refuse_arguments`),
        as `function` is written; none: `function` itself.
    memory: of a command that is no measurement's own the one whose memory it takes, as `function`
        is written; with these `sizes` in place of arguments.
    examples: options of its examples, a text each.
    defaults: values, as they would be written, of parameters that Python requires.
    python_only: parameters that are no options, each with the reason.
    fixed: arguments that the command gives itself.
    hosted: a model that runs elsewhere may answer; `of_questions` are the parameters that it leaves
        to choose.
    runs_model: it runs a model. loads_model: the function loads it itself, and is given what was
        written.
    draws: the result is saved by --out. measures: it runs a measurement, and gives a result.
    options_written, common: its own options as the command line declares them, and the sets of
        `COMMON_OPTIONS` that it has.
    """

    name: str
    function: str
    summary: str
    parameters: tuple[Parameter, ...] = ()
    description: str = ""
    examples: tuple[str, ...] = ()
    defaults: Mapping[str, str] = field(default_factory=dict)
    python_only: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, object] = field(default_factory=dict)
    hosted: str | None = None
    of_questions: tuple[str, ...] = ()
    checked_by: tuple[str, ...] = ()
    memory: str = ""
    sizes: Mapping[str, object] = field(default_factory=dict)
    runs_model: bool = False
    loads_model: bool = False
    draws: bool = True
    measures: bool = True
    options_written: tuple[Mapping[str, object], ...] = ()
    common: tuple[str, ...] = ()

    @cached_property
    def words(self) -> tuple[str, ...]:
        """The name, word by word."""
        return tuple(self.name.split(" "))

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of the function's parameters."""
        return frozenset(parameter.name for parameter in self.parameters)

    @cached_property
    def options(self) -> tuple[Parameter, ...]:
        """The parameters that are options or arguments of the command, but for its prompt."""
        hidden = {*self.fixed, *self.python_only}
        kinds = ("supplied", "model", "prompt")
        return tuple(p for p in self.parameters if p.kind not in kinds and p.name not in hidden)

    @cached_property
    def prompts(self) -> tuple[Parameter, ...]:
        """The parameters that are prompts."""
        return tuple(parameter for parameter in self.parameters if parameter.kind == "prompt")

    @property
    def example_lines(self) -> tuple[str, ...]:
        """Command lines to type."""
        return tuple(f"ostools {self.name} {options}".rstrip() for options in self.examples)

    @property
    def run(self) -> Callable[..., Result]:
        """The function; its module is imported now."""
        return _imported(self.function)

    @property
    def checking(self) -> list[Callable[..., object]]:
        """The functions that refuse wrong arguments; their modules are imported now."""
        return [*map(_imported, self.checked_by or (self.function,))]

    @property
    def measurement(self) -> Callable[..., int]:
        """What counts the bytes that it takes, or the measurement that does; imported now."""
        return _imported(self.memory or self.function)


def _imported(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def read_command(stored: Mapping[str, Any]) -> Command:
    """The command of an entry of `commands.json`."""
    parameters = tuple(Parameter(**_read_fields(row)) for row in stored.get("parameters", ()))
    return Command(**{**_read_fields(stored), "parameters": parameters})


def _read_fields(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Lists as tuples, and a default that is a range as one."""
    fields = {name: tuple(v) if isinstance(v, list) else v for name, v in stored.items()}
    if isinstance(default := stored.get("default"), dict):
        fields["default"] = range(*default["range"])
    return fields


_STORED = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
VERBS: Mapping[str, str] = _STORED["verbs"]
"""The fourteen verbs with what each does, in the order of `ostools --help`."""
COMMON_OPTIONS: Mapping[str, Sequence[Mapping[str, object]]] = _STORED["common"]
"""Options that mean the same in all commands that have them, in sets."""
COMMANDS = {command.words: command for command in map(read_command, _STORED["commands"])}
"""Every command by its words, in the order of the verbs."""
MEASURED = tuple(command for command in COMMANDS.values() if command.measures)
"""The commands that measure, and give a result."""
