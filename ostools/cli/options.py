"""Options of a command, out of the parameters of its function: one meaning a word everywhere.

`model` is a hub id, a directory or a name; `prompt` a text or ids; lists of whole numbers are
ranges such as 1:64 or lists such as 8,16; lists of names are written with commas, or as an option
that is repeated. Whatever is written is read, or refused, before a model is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ostools.cli.commands import COMMON_OPTIONS, Command, Parameter
from ostools.ground import InputError, checked_name, parse_lengths

if TYPE_CHECKING:
    from ostools.mitigations import Mitigation

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
