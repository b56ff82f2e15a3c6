"""Rows of `ostools/cli/commands.json` that declare the options of a command: names, metavar, help.

`scripts.commands` writes them, `ostools.cli.commands` makes click's options of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ostools.cli.commands import Command, Parameter
from ostools.cli.running import takes_question

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
    ("--max-memory", "SIZE", "What the work may take beside the model (4GiB); else what is free."),
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
_QUESTION = (
    (
        "--task",
        "NAME[:OPTIONS]",
        f"In place of a prompt {_TASK}; read where the answer is predicted.",
    ),
    ("--length", "INTEGER", "Number of items of the task."),
    ("--task-seed", "INTEGER", "Seed of the task's sequence, if it draws one."),
)
_HELP = {
    "task": _TASK,
    "pairs": _TASK,
    "repeating": _TASK,
    "mitigation": "what acts on prompt or pass, such as separator:every=3 ('ostools list mitigations'), or ./mine.py:NAME",
}
"""Help of the kinds of values that mean the same everywhere."""
_LONG = 32
"""Numbers of a default that a help does not list."""
_METAVARS = {"text": "TEXT", "names": "NAME", "path": "PATH", "numbers": "RANGE", "places": "PART"}
_METAVARS |= dict.fromkeys(_HELP, "NAME[:OPTIONS]")


Row = dict[str, Any]


def common_options() -> dict[str, list[Row]]:
    """The options that mean the same in all commands that have them, by the name of their set."""
    sets = {
        "name": [("--model", "NAME", MODEL_HELP)],
        "hosted": _HOSTED,
        "model": _OF_A_MODEL,
        "result": _OF_A_RESULT,
        "every": _OF_EVERY,
    }
    return {name: _rows(rows) for name, rows in sets.items()}


def common_of(command: Command, runs_model: bool) -> list[str]:
    """The sets of common options that a command has, in the order of its help; `runs_model`: it
    loads its model itself."""
    has_model = bool(command.of_kind("model"))
    has = {
        "name": has_model,
        "hosted": bool(command.of_questions),
        "model": has_model or runs_model,
        "result": command.measures,
        "every": True,
    }
    return [name for name, is_there in has.items() if is_there]


def written_options(
    command: Command,
    lines: Mapping[str, str],
    by_place: Sequence[str],
    defaults: Mapping[str, object],
) -> list[Row]:
    """Every argument and option of a command that is its own. lines: what the docstring says of
    each parameter; by_place: those that may be given without their name."""
    rows: list[Row] = []
    for prompt in command.of_kind("prompt"):
        rows += _prompt_options(command, prompt)
    for parameter in command.options:
        name = parameter.name
        rows.append(_option(command, parameter, lines[name], name in by_place, defaults[name]))
    return rows


def _rows(rows: Sequence[tuple[str, str, str]], many: bool = False) -> list[Row]:
    return [
        {"names": [name], "help": text, **({"metavar": metavar} if metavar else {})}
        | ({"many": True} if many else {})
        for name, metavar, text in rows
    ]


def _prompt_options(command: Command, prompt: Parameter) -> list[Row]:
    many = "; repeatable" if prompt.many else ""
    texts = [
        ("--prompt", "TEXT", f"The text to measure on{many}."),
        ("--ids", "IDS", f"Token ids in place of a text: 2,40,50{many}."),
    ]
    return _rows(texts, prompt.many) + _rows(_QUESTION * takes_question(command))


def _option(
    command: Command, parameter: Parameter, line: str, by_place: bool, default: object
) -> Row:
    """The declaration of one parameter, with its choices and its default."""
    usual = command.defaults.get(parameter.name) or _shown(default)
    kind, text = parameter.kind, _help(parameter, line)
    text += f"  [default: {usual}]" if usual else ""
    is_required = parameter.required and command.defaults.get(parameter.name) is None
    required: Row = {"required": True} if is_required else {}
    if by_place and not command.measures:
        metavar = parameter.name.upper()
        return {"names": [parameter.name], "metavar": metavar, "argument": True, "help": text} | (
            required
        )
    names = [parameter.option, parameter.name]
    if kind == "flag":
        negation = f"/--no-{parameter.option[2:]}" if default is not False else ""
        return {"names": [f"{names[0]}{negation}", names[1]], "help": text, **required}
    metavars = {"number": "FLOAT", "whole": "INTEGER"} | _METAVARS
    metavar = metavars.get(kind, "TEXT")
    if parameter.words:
        beside_words = [] if kind == "word" else [metavars.get(kind, "INTEGER")]
        metavar = f"[{'|'.join([*map(str, parameter.words), *beside_words])}]"
    many: Row = {"many": True} if parameter.many else {}
    return {"names": names, "metavar": metavar, "help": text, **many, **required}


def _help(parameter: Parameter, line: str) -> str:
    line = _HELP.get(parameter.kind) or line
    line = re.sub(r"`(ostools [^`]*)`", r"'\1'", line).replace("`", "")
    line = re.sub(r"\bNone: ", "without it: ", line)
    return f"{line[:1].upper()}{line[1:]}."


def _shown(default: object) -> str:
    """A default as it would be written on the command line; nothing for None, flags, and what no
    command line spells, or only with many numbers."""
    if isinstance(default, range) and default.step == 1:
        return f"{default[0]}:{default[-1]}"
    if isinstance(default, tuple | list | range):
        return ",".join(map(str, default)) if len(default) < _LONG else ""
    is_written = isinstance(default, int | float | str) and not isinstance(default, bool)
    return str(default) if is_written else ""
