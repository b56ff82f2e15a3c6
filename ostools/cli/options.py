"""Options of a command, out of the parameters of its function: one meaning a word everywhere.

`model` is a hub id, a directory or a name; `prompt` a text, ids or a file; lists of whole numbers
are ranges such as 1:64 or lists such as 8,16; lists of names are written with commas, or as an
option that is repeated. Whatever is written is read, or refused, before a model is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ostools.cli.commands import COMMON_OPTIONS, Command, Parameter
from ostools.cli.prompts import read_prompts
from ostools.ground.errors import InputError, did_you_mean
from ostools.ground.whole_numbers import parse_lengths

if TYPE_CHECKING:
    from ostools.mitigations import Mitigation

_FROM_ONE = ("lengths", "windows")
"""Numbers of which none is 0."""
_TYPES = {"INTEGER": click.INT, "FLOAT": click.FLOAT}


class CommonOption(click.Option):
    """An option that means the same in all commands that have it: model, limits, output."""


def declared(command: Command) -> list[click.Parameter]:
    """Every argument and option of a command, those of its function first."""
    options = [_declared(row, click.Option) for row in command.options_written]
    for name in command.common:
        options += [_declared(row, CommonOption) for row in COMMON_OPTIONS[name]]
    return options


def _declared(row: Mapping[str, Any], kind: type[click.Option]) -> click.Parameter:
    """The option of a row of `commands.json`: names, metavar (none: a flag), help, whether it is
    required, repeatable, or an argument without a name."""
    names, metavar, required = list(row["names"]), row.get("metavar"), row.get("required", False)
    if row.get("argument"):
        argument = click.Argument(names, metavar=metavar, required=required)
        argument.help = row["help"]  # pyright: ignore[reportAttributeAccessIssue]
        return argument
    how = {"help": row["help"], "required": required}
    if metavar is None:
        return kind(names, is_flag=True, default=None, **how)
    value_type, many = _TYPES.get(metavar, click.STRING), row.get("many", False)
    return kind(names, metavar=metavar, type=value_type, multiple=many, **how)


def takes_question(command: Command) -> bool:
    """Whether the prompt may be a task's question, given by --task and --length."""
    return "task" not in command.names and any(prompt.question for prompt in command.prompts)


# ---- from what is written to arguments


def read_arguments(command: Command, values: Mapping[str, object]) -> dict[str, object]:
    """Arguments of the command's function that were given, or that have a default of the command.

    A prompt is a `Prompts`. Raises `InputError` for what cannot be read.
    """
    arguments: dict[str, object] = {}
    for parameter in command.prompts:
        prompts = read_prompts(values, needed=parameter.required, questions=takes_question(command))
        if prompts is not None:
            arguments[parameter.name] = prompts
    for parameter in command.options:
        value = values.get(parameter.name)
        if value in (None, ()):
            usual = command.defaults.get(parameter.name)
            value = usual.split(" ") if usual and parameter.many else usual
        if value is not None:
            arguments[parameter.name] = _read(parameter, value)
    return arguments


def _read(parameter: Parameter, value: object) -> object:
    """The argument that was written, of a list every item."""
    read = _READERS.get(parameter.kind)
    if not (parameter.many and isinstance(value, Iterable)):
        return value if read is None else read(parameter, str(value))
    texts = [str(text) for text in value]
    if parameter.kind in ("word", "names"):  # inside parentheses a comma is a name's own
        texts = [word.strip() for text in texts for word in re.split(r",(?![^(]*\))", text)]
    items = tuple(text if read is None else read(parameter, text) for text in texts)
    return items[0] if parameter.or_one and len(items) == 1 else items


def _word(parameter: Parameter, text: str) -> str:
    if text not in parameter.words:
        question = did_you_mean(text, parameter.words)
        end = f": {question.rstrip()}" if question else ""
        expected = ", ".join(parameter.words)
        raise InputError(f"{parameter.option}: expected {expected}, found {text!r}{end}")
    return text


def _whole_number(parameter: Parameter, text: str) -> int | str:
    """The number, or one of the words that stand for one."""
    return int(text) if re.fullmatch(r"-?\d{1,19}", text, re.ASCII) else _word(parameter, text)


def _numbers(parameter: Parameter, text: str) -> tuple[int, ...] | str:
    if text.strip() in parameter.words:
        return text.strip()
    if parameter.words and not re.fullmatch(r"[\d,:\s]+", text, re.ASCII):
        expected = " or ".join(map(repr, parameter.words))
        raise InputError(f"{parameter.option} {text!r}: expected {expected} or numbers such as 0,2")
    least = 1 if parameter.name in _FROM_ONE else 0
    return tuple(parse_lengths(text, parameter.option, least))


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

    if parameter.kind == "task":
        tasks.task(spec)
    elif parameter.kind == "pairs":
        tasks.pairs_or_task(spec)
    else:
        tasks.task(spec, tasks.CollapseTask)
    return spec


_READERS: dict[str, Callable[[Parameter, str], object]] = {
    "word": _word,
    "whole": _whole_number,
    "numbers": _numbers,
    "places": _place,
    "mitigation": _mitigation,
    "path": lambda parameter, text: Path(text),
    **dict.fromkeys(("task", "pairs", "repeating"), _task),
}
"""By the kind of a parameter; of the others the value is as click read it."""
