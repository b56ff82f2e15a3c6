"""The table of commands: every one has help at once, examples that can be typed, and every
parameter of its function.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from ostools.cli.commands import COMMANDS, VERBS, Command
from ostools.cli.global_options import parse_bytes
from ostools.cli.options import _read, declared
from ostools.ground.errors import InputError
from ostools.ground.whole_numbers import parse_lengths
from scripts import commands
from scripts.command_options import shown_default
from tests.cli.asking import in_a_process, parsed

HEAVY = (
    "torch",
    "transformer_lens",
    "transformers",
    "pandas",
    "altair",
    "numpy",
    "jinja2",
    "rich",
    "statsmodels",
)

every_command = pytest.mark.parametrize(
    "command", COMMANDS.values(), ids=lambda command: command.name
)


def test_help_imports_nothing_heavy() -> None:
    """Neither help nor a version, in one process for all: what the first imports the last would
    show too.
    """
    asked = [
        ["--help"],
        ["--version"],
        ["list", "--help"],
        *([*words, "--help"] for words in COMMANDS),
    ]
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


def test_there_are_fourteen_verbs_and_help_lists_each_once(run) -> None:
    code, out, err = run("--help")
    assert (code, err) == (0, "")
    listed = out.partition("Commands:")[2].splitlines()
    assert [line.split()[0] for line in listed if line.startswith("  ") and line[2].isalpha()][
        :14
    ] == [*VERBS]
    assert {words[0] for words in COMMANDS} == set(VERBS)
    assert len(VERBS) == 14


@every_command
def test_examples_can_be_typed_and_every_option_has_help(
    run, tmp_path: Path, command: Command
) -> None:
    code, out, err = run(*command.words, "--help")
    assert (code, err) == (0, "")
    assert command.example_lines
    for line in command.example_lines:
        assert line in out
        program, *words = shlex.split(line)
        assert program == "ostools"
        assert tuple(words[: len(command.words)]) == command.words
        (tmp_path / "prompts.jsonl").write_text('{"prompt": "a"}')
        parsed(words)
    for parameter in declared(command):
        assert len(getattr(parameter, "help", None) or "") > 3, parameter.name


def test_the_stored_commands_are_the_functions_as_they_are() -> None:
    """`python -m scripts.commands` writes them anew."""
    assert commands.FILE.read_text("utf-8") == commands.text()


@every_command
def test_every_parameter_is_an_option_or_python_only_with_the_reason(command: Command) -> None:
    reached = {parameter.name for parameter in (*command.options, *command.prompts)}
    given = {
        parameter.name
        for parameter in command.parameters
        if parameter.kind in ("supplied", "model")
    }
    assert command.names == reached | given | {*command.fixed, *command.python_only}
    assert {*command.fixed, *command.python_only, *command.defaults} <= command.names
    assert all(len(reason) > 10 for reason in command.python_only.values())


@every_command
def test_defaults_as_they_are_shown_can_be_typed(command: Command) -> None:
    for parameter in command.options:
        shown = command.defaults.get(parameter.name) or shown_default(parameter)
        if shown and not command.loads_model:
            assert _read(parameter, shown.split(" ") if parameter.many else shown) is not None, (
                parameter.name
            )


def test_one_word_has_one_meaning_everywhere() -> None:
    """An option is a flag, a number or a text in all commands, and `--out` a file but where a
    directory is kept.
    """
    kinds: dict[str, set[tuple[bool, str]]] = {}
    for command in COMMANDS.values():
        for option in declared(command):
            if isinstance(option, click.Option):
                kinds.setdefault(option.opts[0], set()).add((option.is_flag, option.type.name))
    assert {name for name, found in kinds.items() if len(found) > 1} == set()
    assert {
        "--dtypes",
        "--load-dtype",
        "--model",
        "--prompt",
        "--task",
        "--lengths",
        "--seeds",
    } <= set(kinds)


@pytest.mark.parametrize(
    ("line", "arguments"),
    [
        ("sensitivity --prompt a --layers all", {"layers": "all"}),
        ("sensitivity --prompt a --linearisations full,frozen", {"linearisations": ("full", "frozen")}),
        ("sensitivity --prompt a --layers 0:2,5 --logit ' a, b'", {"layers": (0, 1, 2, 5), "logit": " a, b"}),
        ("sensitivity --prompt a --logit x --logit y", {"logit": ("x", "y")}),
        ("bounds --prompt a --variants local --variants 'windowed(2)'", {"variants": ("local", "windowed(2)")}),
        ("collapse variation --no-bos --seeds 0:2", {"bos": False, "seeds": (0, 1, 2), "lengths": (*range(1, 129),)}),
        ("ablate --targets 2.0 --targets 2.0:64:7 --targets 1.mlp", {"targets": ((2, 0), (2, 0, 64, 7), (1, "mlp"))}),
        ("mitigate", {"mitigations": ("separator:every=3", "hint", "interleave")}),
        ("reproduce --out x --figures 5,9", {"out": Path("x"), "figures": (5, 9)}),
        ("sweep run a.yaml --out x --workers 2", {"sweep": Path("a.yaml"), "out": Path("x"), "workers": 2}),
    ],
)  # fmt: skip
def test_what_is_written_becomes_the_argument(line: str, arguments: dict[str, object]) -> None:
    read = parsed(shlex.split(line))
    assert {name: read[name] for name in arguments} == arguments


def test_sizes_of_memory() -> None:
    sizes = {
        "4GiB": 4 << 30,
        "500 MB": 500_000_000,
        "1.5kib": 1536,
        "77": 77,
        "1e9": 10**9,
        "1e3 MB": 10**9,
    }
    assert {text: parse_bytes(text) for text in sizes} == sizes


@pytest.mark.parametrize("number", ["4,5{}", "4{}/2", "5%", "4{} 2", "-4{}", "nan", "1e999", ""])
def test_a_size_with_more_than_a_number_and_a_unit_is_refused(number: str) -> None:
    with pytest.raises(InputError, match="expected a size such as"):
        parse_bytes(number.format("GiB"))


def test_lengths_are_read_inclusively() -> None:
    lengths = {"1:4": [1, 2, 3, 4], "8,16,32": [8, 16, 32], "3:3": [3], "7, 1:3,2": [1, 2, 3, 7]}
    assert {text: parse_lengths(text) for text in lengths} == lengths
    assert parse_lengths("0,5", "--seeds", 0) == [0, 5]
    for text in ("", "1:", "a", "1.5", "-3", "0:4", "1:2:3", "1,,2", "1:10000000", "٣", "1" * 5000):
        with pytest.raises(InputError, match="--lengths"):
            parse_lengths(text)


def test_completion_answers() -> None:
    words = {"COMP_WORDS": "ostools coll", "COMP_CWORD": "1", "_OSTOOLS_COMPLETE": "bash_complete"}
    done = in_a_process(env=os.environ | words)
    assert "collapse" in done.stdout
    assert "Traceback" not in done.stderr
