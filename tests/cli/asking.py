"""Calls of the command line, and the form of every refusal."""

import contextlib
import io
from typing import Any

import click

from ostools.cli import app
from ostools.cli.commands import COMMANDS as _TABLE
from ostools.cli.commands import read_arguments
from ostools.cli.running import read_prompts

COMMANDS = tuple(command.name for command in _TABLE.values())
NOTES = ("forecast: ",)


def parsed(words: list[str]) -> dict[str, Any]:
    """The arguments that a command line gives its function, read and not run. Raises for one that
    cannot be read.
    """
    name, leaf, rest = app.resolve_command(click.Context(app, info_name="ostools"), words)
    assert leaf is not None, words
    values = leaf.make_context(name, list(rest)).params
    command = _TABLE[tuple(str(name).split(" "))]
    read_prompts(command, values)
    return read_arguments(command, values)


def accepted(words: list[str]) -> None:
    """Refuse a command line that names no command, or an option or value that it has not; run
    nothing.
    """
    name, leaf, rest = app.resolve_command(click.Context(app, info_name="ostools"), words)
    assert leaf is not None, words
    with contextlib.suppress(click.exceptions.Exit), contextlib.redirect_stdout(io.StringIO()):
        leaf.make_context(name, list(rest))


def assert_refused(found: tuple[int, str, str], *words: str) -> None:
    """Code 2, nothing on stdout, one line on stderr beside notes, with these words in it."""
    code, out, err = found
    assert (code, out) == (2, "")
    assert err.endswith("\n")
    (refusal,) = (line for line in err.splitlines() if not line.startswith(NOTES))
    assert refusal.startswith("ostools: ")
    assert "Traceback" not in err
    for word in words:
        assert word in err


def assert_one_forecast(err: str) -> None:
    """One line that says what memory the work takes, and nothing else."""
    assert err.count("\n") == 1
    assert err.startswith(NOTES[0])
