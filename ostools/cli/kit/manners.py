"""How a command speaks: with progress and notes or without, in tables for people or in JSON for programs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, get_type_hints

import typer

Quiet = Annotated[bool, typer.Option("--quiet", help="No progress, no notes: results and refusals only.")]
Json = Annotated[bool, typer.Option("--json", help="The whole result as JSON on stdout, its provenance with it.")]


@dataclass
class Manners:
    """What the running command was asked for."""

    quiet: bool = False
    json: bool = False


MANNERS = Manners()
"""Of this process: a command line runs one command."""


def on_one_line(text: object) -> str:
    """The text as a terminal may have it: no character that breaks the line, drives the terminal or turns the direction."""
    words = "".join(character if character.isprintable() else " " for character in str(text)).split()
    return " ".join(words)


def with_manners(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with the options `--quiet` and `--json`, which every command has."""
    hints = get_type_hints(command, include_extras=True)
    own = [given.replace(annotation=hints[name]) for name, given in inspect.signature(command).parameters.items()]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=kind)
        for name, kind in (("quiet", Quiet), ("json", Json))
    ]

    @functools.wraps(command)
    def spoken(*, quiet: bool = False, json: bool = False, **options: Any) -> Any:
        MANNERS.quiet, MANNERS.json = quiet, json
        return command(**options)

    spoken.__signature__ = inspect.Signature(own + added)  # pyright: ignore[reportAttributeAccessIssue]
    spoken.__annotations__ = {parameter.name: parameter.annotation for parameter in own + added}
    return spoken
