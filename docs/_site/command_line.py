"""The reference of the command line, written from the declarations that `ostools` itself runs: it cannot drift from them."""

from __future__ import annotations

import re
from typing import Any

import typer

from ostools.cli import app

MARKER = "<!-- every command, from the program itself -->"


def reference() -> str:
    """Markdown: every command with its purpose, its arguments and options, and its examples."""
    group: Any = typer.main.get_command(app)  # typer's own group, which shows no public type.
    return "\n\n".join(_command(name, command) for name, command in group.commands.items())


def _command(name: str, command: Any) -> str:
    text = re.sub(r"[\b\f]", "", command.help or "")
    purpose, _, examples = text.partition("Example:")
    lines = [f"### ostools {name}", "", _escaped(purpose.strip()), "", "| option | |", "|---|---|"]
    lines += [_row(parameter) for parameter in command.params]
    shown = [line.strip() for line in examples.strip().splitlines()]
    return "\n".join([*lines, "", *(["```", *shown, "```"] if shown else [])])


def _row(parameter: Any) -> str:
    value = parameter.metavar or parameter.name.upper()
    if getattr(parameter, "is_flag", None) is None:
        shown = f"`{value}`"
    else:
        names = " / ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
        shown = names if parameter.is_flag else f"{names} `{value}`"
    said = _escaped(parameter.help or "")
    if parameter.required:
        said += " Required."
    elif isinstance(parameter.default, str | int | float) and not isinstance(parameter.default, bool):
        said += f" Default: `{parameter.default}`."
    return f"| {shown} | {said} |"


def _escaped(text: str) -> str:
    """Plain text as Markdown that reads the same, also in a table."""
    return re.sub(r"([\\*_|<\[\]])", r"\\\1", text)
