"""Help answers at once, shows an example that can be run, and completion knows the commands."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import typer

from ostools import cli
from tests.cli.asking import COMMANDS, in_a_process

HEAVY = ("torch", "transformer_lens", "transformers", "pandas", "altair", "numpy", "jinja2", "rich", "statsmodels")


def test_help_imports_nothing_heavy() -> None:
    """Neither help nor a version, in one process for all: what the first imports the last would show too."""
    asked = [["--help"], ["--version"], *([command, "--help"] for command in COMMANDS)]
    code = f"""
import contextlib, io, sys
from ostools.cli import main
for arguments in {asked}:
    sys.argv = ["ostools", *arguments]
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        try:
            main()
        except SystemExit as stopped:
            assert not stopped.code, arguments
    assert said.getvalue(), arguments
    assert not set({HEAVY}) & set(sys.modules), (arguments, set({HEAVY}) & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_these_are_the_commands() -> None:
    assert tuple(getattr(typer.main.get_command(cli.app), "commands")) == COMMANDS  # noqa: B009 (no public type)


def test_help_lists_every_command_once_under_a_heading(run) -> None:
    code, out, err = run("--help")
    assert (code, err) == (0, "")
    headings = ["Measure:", "The paper:", "Mitigate:", "Sweep:", "Look:"]
    lines = out.splitlines()
    assert [line for line in lines if line in headings] == headings
    listed = lines[lines.index(headings[0]) :]
    assert (
        tuple(line.split()[0] for line in listed if line.startswith("  ") and line[2] != " ")[: len(COMMANDS)]
        == COMMANDS
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_shows_an_example_whose_options_exist_and_has_manners(run, command: str) -> None:
    code, out, err = run(command, "--help")
    assert (code, err) == (0, "")
    example, options = out.partition("Example:")[2].split("Options:")
    assert f"ostools {command}" in example
    for word in ("--quiet", "--json", *(word for word in example.split() if word.startswith("--"))):
        assert f"  {word} " in options


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_answers(shell: str) -> None:
    words = {"COMP_WORDS": "ostools coll", "COMP_CWORD": "1", "_TYPER_COMPLETE_ARGS": "ostools coll"}
    fish = {"_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    done = in_a_process(env=os.environ | words | fish | {"_OSTOOLS_COMPLETE": f"complete_{shell}"})
    assert "collapse" in done.stdout
    assert "Traceback" not in done.stderr
