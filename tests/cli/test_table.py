"""The table of commands: every one has help at once, examples that can be typed, and every
parameter of its function.
"""

import operator
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

import ostools as ost
from ostools.cli.commands import COMMANDS, MEASURED, Command, declared
from ostools.cli.terminal import parse_bytes
from ostools.ground.arguments import full_signature
from scripts import commands
from tests.cli.asking import parsed

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


@every_command
def test_examples_can_be_typed_and_every_option_has_help(run, command: Command) -> None:
    code, out, err = run(*command.words, "--help")
    assert (code, err) == (0, "")
    assert command.example_lines
    for line in command.example_lines:
        assert line in out
        program, *words = shlex.split(line)
        assert program == "ostools"
        assert tuple(words[: len(command.words)]) == command.words
        parsed(words)
    for row in command.options_written:
        assert len(row["help"]) > 3, row["names"]


def test_the_stored_commands_are_the_functions_as_they_are() -> None:
    """`python -m scripts.commands` writes them anew."""
    assert commands.FILE.read_text("utf-8") == commands.text()


def test_every_parameter_is_an_option_or_python_only_with_the_reason() -> None:
    for record in ost.measure.RECORDS.values():
        for command in MEASURED:
            if record.command == command.name:
                reached = {parameter.name for parameter in command.parameters}
                names = full_signature(record.function).parameters.keys()
                assert names == reached | {*record.python_only}
                assert all(len(reason) > 10 for reason in record.python_only.values())


def test_the_public_name_of_a_measurement_is_its_function() -> None:
    for command in MEASURED:
        function = operator.attrgetter(command.python.removeprefix("ost."))(ost)
        assert command.function.startswith("ostools.cli") or function is command.run


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


@pytest.mark.parametrize(
    ("line", "arguments"),
    [
        ("sensitivity --prompt a --linearisations full,frozen", {"linearisations": ("full", "frozen")}),
        ("sensitivity --prompt a --layers 0:2,5 --logit ' a, b'", {"layers": (0, 1, 2, 5), "logit": " a, b"}),
        ("bounds --prompt a --variants local --variants 'windowed(2)'", {"variants": ("local", "windowed(2)")}),
        ("collapse variation --no-bos --seeds 0:2", {"bos": False, "seeds": (0, 1, 2), "lengths": (*range(1, 129),)}),
        ("ablate --targets 2.0 --targets 2.0:64:7 --targets 1.mlp", {"targets": ((2, 0), (2, 0, 64, 7), (1, "mlp"))}),
        ("mitigate", {"mitigations": ("separator:every=3", "hint", "interleave")}),
        ("sweep run a.yaml --out x --workers 2", {"sweep": Path("a.yaml"), "out": Path("x"), "workers": 2}),
    ],
)  # fmt: skip
def test_what_is_written_becomes_the_argument(line: str, arguments: dict[str, object]) -> None:
    read = parsed(shlex.split(line))
    assert {name: read[name] for name in arguments} == arguments


def test_sizes_of_memory() -> None:
    sizes = {"4GiB": 4 << 30, "500 MB": 500_000_000, "1.5kib": 1536, "77": 77}
    assert {text: parse_bytes(text) for text in sizes} == sizes
    for wrong in ("4,5GiB", "5%", "-4GiB", "nan", ""):
        with pytest.raises(ost.InputError, match="expected a size such as"):
            parse_bytes(wrong)
