"""The commands: `ostools VERB [WHAT]`, each with the public function that it runs.

`commands.json` holds what the functions say of themselves: parameters, help, examples.
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


@dataclass(frozen=True)
class Parameter:
    """One parameter of a function, as the command line reads it.

    kind: what is read, by the annotation (`scripts.commands`): prompt, task, pairs, repeating (a
    task of such pairs), mitigation, word (one of `words`), names, text, numbers, whole, number,
    places (parts of a model), path, flag; or what the command gives itself: model, progress, limit.
    many: a list of them; or_one: or one by itself.
    question: the prompt may be a task's question, and the words are of one.
    """

    name: str
    kind: str
    required: bool = False
    words: Sequence[str] = ()
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

    name: the words of the command line. function: "module:function", which `run` imports; python:
    its public name.
    parameters: those that are not Python's alone.
    checked_by: functions that refuse wrong arguments before a model is loaded (`refuse_arguments`),
        as `function` is written; none: `function` itself.
    memory: the measurement whose memory it takes, as `function` is written; none: `function`; with
        these `sizes` in place of arguments.
    examples: options of its examples, a text each.
    defaults: values, as they would be written, of parameters that Python requires.
    fixed: arguments that the command gives itself.
    of_questions: the parameters that a model that runs elsewhere leaves to choose; none: only a
        model that is loaded here may answer.
    measures: it gives a result; else the function loads its model itself, and is given what was
        written.
    options_written, common: its own options as the command line declares them, and the sets of
        `COMMON_OPTIONS` that it has.
    """

    name: str
    function: str
    python: str
    summary: str
    examples: Sequence[str]
    parameters: Sequence[Parameter] = ()
    description: str = ""
    defaults: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, object] = field(default_factory=dict)
    of_questions: Sequence[str] = ()
    checked_by: Sequence[str] = ()
    memory: str = ""
    sizes: Mapping[str, object] = field(default_factory=dict)
    measures: bool = True
    options_written: Sequence[Mapping[str, Any]] = ()
    common: Sequence[str] = ()

    @cached_property
    def words(self) -> tuple[str, ...]:
        """The name, word by word."""
        return tuple(self.name.split(" "))

    def of_kind(self, *kinds: str) -> list[Parameter]:
        """The parameters of these kinds."""
        return [parameter for parameter in self.parameters if parameter.kind in kinds]

    @property
    def options(self) -> list[Parameter]:
        """The parameters that are options or arguments of the command, but for its prompt."""
        supplied = self.of_kind("model", "progress", "limit", "prompt")
        return [parameter for parameter in self.parameters if parameter not in supplied]

    @property
    def example_lines(self) -> list[str]:
        """Command lines to type."""
        return [f"ostools {self.name} {options}".rstrip() for options in self.examples]

    @property
    def run(self) -> Callable[..., Result]:
        """The function; its module is imported now."""
        return _imported(self.function)

    @property
    def checking(self) -> list[Callable[..., object]]:
        """The functions that refuse wrong arguments; their modules are imported now."""
        return [*map(_imported, self.checked_by or (self.function,))]

    @property
    def measurement(self) -> Callable[..., object]:
        """The measurement whose memory it takes; imported now."""
        return _imported(self.memory or self.function)


def _imported(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def read_command(stored: Mapping[str, Any]) -> Command:
    """The command of an entry of `commands.json`."""
    parameters = [Parameter(**row) for row in stored.get("parameters", ())]
    return Command(**{**stored, "parameters": parameters})


_STORED = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
VERBS: Mapping[str, str] = _STORED["verbs"]
"""The fourteen verbs with what each does, in the order of `ostools --help`."""
COMMON_OPTIONS: Mapping[str, Sequence[Mapping[str, Any]]] = _STORED["common"]
"""Options that mean the same in all commands that have them, in sets."""
COMMANDS = {command.words: command for command in map(read_command, _STORED["commands"])}
"""Every command by its words, in the order of the verbs."""
MEASURED = [command for command in COMMANDS.values() if command.measures]
"""The commands that measure, and give a result."""
