"""Options of a command, out of the parameters of its function: one meaning a word everywhere.

`model` is a hub id, a directory or a name; `prompt` a text, ids or a file; lists of whole numbers
are ranges such as 1:64 or lists such as 8,16; lists of names are written with commas, or as an
option that is repeated. Whatever is written is read, or refused, before a model is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from ostools.cli.commands import UNKNOWN, Command, Parameter
from ostools.cli.prompts import read_prompts
from ostools.ground.errors import InputError, did_you_mean
from ostools.ground.whole_numbers import parse_lengths

MODEL_HELP = (
    "'embedded' (the default) or another of 'ostools list models', a directory, or a hub id."
)
_OF_EVERY = (
    ("--json", "", "The whole result as JSON on stdout, its provenance with it."),
    ("--quiet", "", "No progress, no notes: results and refusals only."),
)
"""Options as they are declared: name, what stands behind it (nothing: a flag), help."""
_OF_A_MODEL = (
    ("--device", "NAME", "'auto' (cuda, else cpu) or a torch device."),
    (
        "--load-dtype",
        "NAME",
        "The dtype to load the model in, such as float32; else the one that its file stores.",
    ),
    (
        "--device-map",
        "[auto|disk]",
        "For a model larger than the memory. Default: all on the device.",
    ),
    ("--max-memory", "SIZE", "What the work may take beside the model (4GiB); else what is free."),
    (
        "--max-time",
        "TIME",
        "End what its first steps show to take longer: 90s, 30min, 6h. Default: no limit.",
    ),
    ("--dry-run", "", "Say what memory the work takes; load and measure nothing."),
)
_OF_A_RESULT = (
    (
        "--out",
        "FILE",
        "Chart (.html .png .svg .pdf) or table (.parquet .csv .json); else a table here.",
    ),
    (
        "--size",
        "SIZE",
        "Width of a picture: column (3.3 in), page (6.8 in), slide (19-point letters on a full slide), inches.",
    ),
)
_HOSTED = (
    (
        "--answers",
        "FILE",
        "Answers of a model that runs elsewhere, JSON Lines with id and text; none is loaded.",
    ),
    (
        "--endpoint",
        "URL",
        "An OpenAI-compatible server, asked for what --answers lacks; key in OPENAI_API_KEY.",
    ),
)
_TASK = "a task with its options, such as count-ones:mode=cot-zero-shot; see 'ostools list tasks'"
_PROMPTS = (
    "--prompts",
    "FILE",
    "Many: a text a line, or as 'ostools evaluate prompts' writes them (.jsonl), or {\"ids\": [2, 40]} a line there.",
)
_QUESTION = (
    (
        "--task",
        "NAME[:OPTIONS]",
        f"In place of a prompt {_TASK}; read where the answer is predicted.",
    ),
    ("--length", "INTEGER", "Number of items of the task."),
    ("--seed", "INTEGER", "Seed of the task's sequence, if it draws one."),
)
_HELP = {
    "task": _TASK,
    "pairs": _TASK,
    "repeating": _TASK,
    "mitigation": "what acts on prompt or pass, such as separator:every=3 ('ostools list mitigations'), or ./mine.py:NAME",
}
"""Help of the kinds of values that mean the same everywhere."""
_FROM_ONE = ("lengths", "windows")
"""Numbers of which none is 0."""
_METAVARS = {"text": "TEXT", "names": "NAME", "path": "PATH", "numbers": "RANGE", "places": "PART"}
_METAVARS |= dict.fromkeys(_HELP, "NAME[:OPTIONS]")


class CommonOption(click.Option):
    """An option that means the same in all commands that have it: model, limits, output."""


def _declared(
    rows: Iterable[tuple[str, str, str]],
    repeatable: bool = False,
    of: type[click.Option] = CommonOption,
) -> list[click.Parameter]:
    """The options of these rows: name, metavar (empty: a flag), help."""
    return [
        of([name], metavar=metavar, help=text, multiple=repeatable)
        if metavar
        else of([name], is_flag=True, default=None, help=text)
        for name, metavar, text in rows
    ]


def declared(command: Command) -> list[click.Parameter]:
    """Every argument and option of a command, those of its function first."""
    options = [option for prompt in command.prompts for option in _prompt_options(command, prompt)]
    options += [_option(command, parameter) for parameter in command.options]
    if command.runs_model:
        if not command.loads_model:
            options += _declared([("--model", "NAME", MODEL_HELP)])
        options += _declared((*(_HOSTED if command.hosted else ()), *_OF_A_MODEL))
    return options + _declared((*(_OF_A_RESULT if command.draws else ()), *_OF_EVERY))


def takes_question(command: Command) -> bool:
    """Whether the prompt may be a task's question, given by --task and --length."""
    return "task" not in command.names and any(prompt.question for prompt in command.prompts)


def _prompt_options(command: Command, prompt: Parameter) -> list[click.Parameter]:
    many = "; repeatable" if prompt.many else ""
    rows = [
        ("--prompt", "TEXT", f"The text to measure on{many}."),
        ("--ids", "IDS", f"Token ids in place of a text: 2,40,50{many}."),
    ]
    options = _declared(rows, prompt.many, click.Option)
    rows = [_PROMPTS] * prompt.many
    if takes_question(command):
        rows += [row for row in _QUESTION if row[0][2:] not in command.names]
    options += _declared(rows, of=click.Option)
    for option in options:
        option.type = click.INT if option.metavar == "INTEGER" else option.type
    return options


def _option(command: Command, parameter: Parameter) -> click.Parameter:
    """The declaration of one parameter, with its choices and its default."""
    kind, text = parameter.kind, _help(command, parameter)
    required = parameter.required and command.defaults.get(parameter.name) is None
    if command.loads_model and parameter.by_place:
        argument = click.Argument(
            [parameter.name], metavar=parameter.name.upper(), required=required
        )
        argument.help = text  # pyright: ignore[reportAttributeAccessIssue]
        return argument
    if kind == "flag":
        negation = f"/--no-{parameter.option[2:]}" if parameter.default is not False else ""
        names = [f"{parameter.option}{negation}", parameter.name]
        return click.Option(names, is_flag=True, default=None, help=text, required=required)
    metavar, types = _METAVARS.get(kind), {"number": click.FLOAT, "whole": click.INT}
    if parameter.words:
        beside_words = [] if kind == "word" else [metavar or "INTEGER"]
        metavar, types = f"[{'|'.join([*map(str, parameter.words), *beside_words])}]", {}
    return click.Option(
        [parameter.option, parameter.name],
        multiple=parameter.many,
        metavar=metavar,
        type=types.get(kind, click.STRING),
        help=text,
        required=required,
    )


def _help(command: Command, parameter: Parameter) -> str:
    line = _HELP.get(parameter.kind) or parameter.line
    line = re.sub(r"`(ostools [^`]*)`", r"'\1'", line).replace("`", "")
    line = re.sub(r"\bNone: ", "without it: ", line)
    usual = command.defaults.get(parameter.name) or shown_default(parameter)
    text = f"{line[:1].upper()}{line[1:]}."
    return f"{text}  [default: {usual}]" if usual else text


def shown_default(parameter: Parameter) -> str:
    """A default as it would be written on the command line; nothing for None, flags, unknowns."""
    value: Any = parameter.default
    if value is UNKNOWN or value is None or isinstance(value, bool) or len(str(value)) == 0:
        return ""
    if isinstance(value, range):
        value = tuple(value)
    if isinstance(value, tuple):
        numbers = [item for item in value if isinstance(item, int)]
        if len(numbers) == len(value) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1)):
            return f"{value[0]}:{value[-1]}"
        return ",".join(map(str, value))
    return str(value)


# ---- from what is written to arguments


def read_arguments(command: Command, values: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of the command's function that were given, or that have a default of the command.

    A prompt is a `Prompts`. Raises `InputError` for what cannot be read.
    """
    arguments: dict[str, Any] = {}
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


def _read(parameter: Parameter, value: Any) -> Any:
    """The argument that was written, of a list every item."""
    read = _READERS.get(parameter.kind, _as_written)
    if not parameter.many:
        return read(parameter, value)
    if parameter.kind in ("word", "names"):  # inside parentheses a comma is a name's own
        value = [word.strip() for text in value for word in re.split(r",(?![^(]*\))", text)]
    items = tuple(read(parameter, item) for item in value)
    return items[0] if parameter.one and len(items) == 1 else items


def _as_written(parameter: Parameter, value: Any) -> Any:
    return value


def _word(parameter: Parameter, text: str) -> str:
    if text not in parameter.words:
        question = did_you_mean(text, parameter.words)
        known = ", ".join(parameter.words)
        raise InputError(
            f"{parameter.option}: expected {known}, found {text!r}{question and f': {question.rstrip()}'}"
        )
    return text


def _whole(parameter: Parameter, value: Any) -> Any:
    """The number, or one of the words that stand for one."""
    if not re.fullmatch(r"-?\d{1,19}", str(value), re.ASCII):
        return _word(parameter, value)
    return int(value)


def _numbers(parameter: Parameter, text: str) -> Any:
    if text.strip() in parameter.words:
        return text.strip()
    if parameter.words and not re.fullmatch(r"[\d,:\s]+", text, re.ASCII):
        expected = " or ".join(map(repr, parameter.words))
        raise InputError(f"{parameter.option} {text!r}: expected {expected} or numbers such as 0,2")
    least = 1 if parameter.name in _FROM_ONE else 0
    return tuple(parse_lengths(text, parameter.option, least))


def _place(parameter: Parameter, text: str) -> tuple[Any, ...]:
    """A head 2.0, an edge 2.0:64:7 or a sublayer 2.mlp as the tuple that stands for it."""
    if not re.fullmatch(r"\d{1,5}\.(\d{1,5}(:\d{1,7}:\d{1,7})?|[a-z]+)", text.strip(), re.ASCII):
        raise InputError(
            f"{parameter.option} {text!r}: expected a head layer.head such as 2.0, an edge layer.head:query:key such as "
            "2.0:64:7, or layer.attention or layer.mlp such as 2.mlp"
        )
    return tuple(int(word) if word.isdigit() else word for word in re.split(r"[.:]", text.strip()))


def _mitigation(parameter: Parameter, spec: str) -> Any:
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
        tasks.task(spec, tasks.CollapseTask)
    else:
        tasks.repeating(spec)
    return spec


def _path(parameter: Parameter, value: str) -> Path:
    return Path(value)


_READERS: dict[str, Callable[[Parameter, Any], Any]] = {
    **{
        "word": _word,
        "whole": _whole,
        "numbers": _numbers,
        "places": _place,
        "mitigation": _mitigation,
        "path": _path,
    },
    **dict.fromkeys(("task", "pairs", "repeating"), _task),
}
