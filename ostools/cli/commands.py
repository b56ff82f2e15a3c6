"""The commands: `ostools VERB [WHAT]`, each with the public function that it runs.

`commands.json` holds what the functions say of themselves: parameters, help, examples.
`python -m scripts.commands` writes it from the imported functions, and a test holds the two against
each other. The modules of the measurements import torch, which takes seconds; this file is read in
milliseconds, so `--help` answers at once.

Options are made of the parameters: one meaning a word everywhere. `model` is a hub id, a directory
or a name; `prompt` a text or ids; lists of whole numbers are ranges such as 1:64 or lists such as
8,16; lists of names are written with commas, or as an option that is repeated. Whatever is written
is read, or refused, before a model is loaded.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from ostools.ground import InputError, checked_name, parse_lengths

if TYPE_CHECKING:
    from ostools.mitigations import Mitigation
    from ostools.results import Result
    from ostools.tasks.questions import Question

Value: TypeAlias = "str | tuple[int, ...] | Question"
"""A prompt as a user gives it: a text, its token ids, or a task's question."""


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


_TYPES = {"INTEGER": click.INT, "FLOAT": click.FLOAT}


def declared(command: Command) -> list[click.Parameter]:
    """Every argument and option of a command, those of its function first."""
    common = [row for name in command.common for row in COMMON_OPTIONS[name]]
    return [_declared(row) for row in (*command.options_written, *common)]


def _declared(row: Mapping[str, Any]) -> click.Parameter:
    """The option of a row of `commands.json`: names, help, metavar (none: a flag), whether it is
    required, repeatable, or an argument without a name."""
    names, metavar, required = list(row["names"]), row.get("metavar"), row.get("required", False)
    if row.get("argument"):
        return click.Argument(names, metavar=metavar, required=required)
    return click.Option(
        names,
        help=row["help"],
        required=required,
        metavar=metavar,
        is_flag=metavar is None,
        default=None,
        type=None if metavar is None else _TYPES.get(metavar, click.STRING),
        multiple=row.get("many", False),
    )


def read_arguments(command: Command, values: Mapping[str, Any]) -> dict[str, object]:
    """Arguments of the command's function but for its prompt that were given, or that have a
    default of the command. Raises `InputError` for what cannot be read.
    """
    arguments: dict[str, object] = {}
    for parameter in command.options:
        value = values.get(parameter.name)
        if value in (None, ()):
            usual = command.defaults.get(parameter.name)
            value = usual.split(" ") if usual and parameter.many else usual
        if value is not None:
            arguments[parameter.name] = _read(parameter, value)
    return arguments


def _read(parameter: Parameter, value: Any) -> object:
    """The argument that was written, of a list every item."""
    read = _READERS.get(parameter.kind, lambda parameter, value: value)
    if not parameter.many:
        return read(parameter, value)
    texts = value
    if parameter.kind in ("word", "names"):  # inside parentheses a comma is a name's own
        texts = [word.strip() for text in texts for word in re.split(r",(?![^(]*\))", text)]
    items = tuple(read(parameter, text) for text in texts)
    return items[0] if parameter.or_one and len(items) == 1 else items


def _word(parameter: Parameter, text: str) -> str:
    return checked_name(parameter.option, text, parameter.words)


def _whole_number(parameter: Parameter, text: str | int) -> int | str:
    """The number, or one of the words that stand for one."""
    if re.fullmatch(r"-?\d{1,19}", str(text), re.ASCII):
        return int(text)
    return _word(parameter, str(text))


def _numbers(parameter: Parameter, text: str) -> tuple[int, ...] | str:
    return text if text in parameter.words else tuple(parse_lengths(text, parameter.option, 0))


def _place(parameter: Parameter, text: str) -> tuple[int | str, ...]:
    """A head 2.0, an edge 2.0:64:7 or a sublayer 2.mlp as the tuple that stands for it."""
    if not re.fullmatch(r"\d{1,5}\.(\d{1,5}(:\d{1,7}:\d{1,7})?|[a-z]+)", text.strip(), re.ASCII):
        raise InputError(
            f"{parameter.option} {text!r}: expected a head layer.head such as 2.0, an edge "
            "layer.head:query:key such as 2.0:64:7, or layer.attention or layer.mlp such as 2.mlp"
        )
    return tuple(int(word) if word.isdigit() else word for word in re.split(r"[.:]", text.strip()))


def _mitigation(parameter: Parameter, spec: str) -> Mitigation | str:
    """The name of a mitigation, or the one of a file of the user's own, which runs. Refuses what
    there is not, before torch is imported."""
    from ostools.mitigations.named import is_in_file, typed

    mitigation = typed(spec)
    return mitigation if is_in_file(spec) else spec


def _task(parameter: Parameter, spec: str) -> str:
    """The name of a task, or of pairs. Refuses what there is not, before torch is imported."""
    from ostools import tasks

    if parameter.kind == "pairs":
        tasks.pairs_or_task(spec)
    elif parameter.kind == "task":
        tasks.task(spec)
    else:
        tasks.task(spec, tasks.CollapseTask)
    return spec


_READERS: dict[str, Callable[[Parameter, Any], object]] = {
    "word": _word,
    "whole": _whole_number,
    "numbers": _numbers,
    "places": _place,
    "mitigation": _mitigation,
    "path": lambda parameter, text: Path(text),
    **dict.fromkeys(("task", "pairs", "repeating"), _task),
}
"""By the kind of a parameter; of the others the value is as click read it."""
