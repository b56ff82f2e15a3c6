"""The reference of the command line, written from the declarations that `ostools` itself runs: it
cannot drift from them.
"""

from __future__ import annotations

import re
from typing import Any

from ostools.cli.commands import COMMANDS, Command, declared

MARKER = "<!-- every command, from the program itself -->"


def reference() -> str:
    """Markdown: every command with its purpose, its arguments and options, and its examples."""
    return "\n\n".join(map(_command, COMMANDS.values()))


def _command(command: Command) -> str:
    purpose = f"{command.summary}\n\n{command.description}".strip()
    python = f"Python: `{command.python}`." if command.python else ""
    lines = [f"### ostools {command.name}", "", _escaped(purpose), "", python, ""]
    lines += ["| option | |", "|---|---|", *map(_row, declared(command))]
    return "\n".join([*lines, "", "```", *command.examples, "```"])


def _row(parameter: Any) -> str:
    value = parameter.metavar or parameter.name.upper()
    if getattr(parameter, "is_flag", None) is None:  # an argument, which has no name
        shown = f"`{value}`"
    else:
        names = " / ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
        shown = names if parameter.is_flag else f"{names} `{value}`"
    said = _escaped(getattr(parameter, "help", None) or "")
    if parameter.required:
        said += " Required."
    return f"| {shown} | {said} |"


def _escaped(text: str) -> str:
    """Plain text as Markdown that reads the same, also in a table."""
    return re.sub(r"([\\*_|<\[\]])", r"\\\1", text)
