"""The command line: `ostools VERB [WHAT]`, made of the public functions (`commands`).

No module here imports torch, pandas or rich before a command runs, so that `--help` answers at
once. Results go to stdout, progress and refusals to stderr.
"""

import os
import sys
from functools import partial
from typing import NoReturn

import click

from ostools.cli.commands import COMMANDS, VERBS, Command, declared
from ostools.cli.terminal import on_one_line
from ostools.ground import in_words, is_out_of_memory, unknown_name

# What shells give a program that Ctrl-C ended.
_INTERRUPTED = 130
_WAITING = frozenset({"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"})
"""Settings of the environment that say how OpenMP's threads wait."""
_REFUSALS = frozenset({"InputError", "HookError", "MitigationError"})
"""The errors that are refusals, by their names: without importing the packages below (and torch).
"""
_TOKENIZER = "The tokenizer does not say what the text does"
_MODEL = "The model is not what it says"
_SECTIONS = {
    "InsufficientMemoryError": "It does not fit",
    "HookError": "The edit did nothing",
    "InactiveMitigationError": "The edit did nothing",
    "ostools.models.tokens": _TOKENIZER,
    "ostools.models.chat": _TOKENIZER,
    "ostools.models.files.checks": _MODEL,
    "ostools.models.files.checkpoint": _MODEL,
    "ostools.models.files.gguf": _MODEL,
    "ostools.measure.jacobian.certificate": "The measurement disagrees with itself",
}
"""Sections of docs/errors.md, by the class of an error or the module that raised it."""


class Program(click.Group):
    """`ostools`: the longest words of the table that a command line begins with are its command."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs."""
        return list(VERBS)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the first words name, and the rest of the line."""
        prefixes = [args[: n + 1] for n in range(len(args))]
        count = sum(" ".join(words) in self.commands for words in prefixes)
        if not count:
            raise unknown_name("command", args[0], VERBS)
        words, remaining = tuple(args[:count]), args[count:]
        next_words = [longer[count] for longer in longer_than(words)]
        if next_words and remaining and not remaining[0].startswith("-"):
            raise unknown_name(f"word behind {' '.join(words)}", remaining[0], next_words)
        name = " ".join(words)
        return name, self.commands[name], remaining

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs, each with the WHATs that it has."""
        rows = []
        for verb, summary in VERBS.items():
            more = ", ".join(" ".join(words[1:]) for words in longer_than((verb,)))
            rows.append((verb, f"{summary} [{more}]" if more else summary))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def longer_than(words: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The commands whose words begin with these."""
    return [name for name in COMMANDS if name[: len(words)] == words and name != words]


def _command(words: tuple[str, ...]) -> click.Command:
    """One command of the table, with its examples and the further words of its verb; or words that
    need another one behind them, such as `ostools list`."""
    name, command = " ".join(words), COMMANDS.get(words)
    more = [
        f"  {' '.join(longer)}: {COMMANDS[longer].summary.replace('`', '')}"
        for longer in longer_than(words)
    ]
    epilog = "\n".join(["\b", f"More of ostools {name}:", *more]) if more else ""
    if command is None:
        refuse = partial(_refuse_choice, [longer[len(words)] for longer in longer_than(words)])
        return click.Command(name, help=VERBS.get(name), epilog=epilog, callback=refuse)
    text = f"{command.summary}\n\n{command.description}".replace("`", "").strip()
    examples = "\n  ".join(["\b\nExample:", *command.example_lines])
    return click.Command(
        name,
        params=declared(command),
        help=text,
        epilog=f"{examples}\n\n{epilog}",
        callback=partial(_run, command),
    )


def _refuse_choice(next_words: list[str]) -> None:
    raise click.UsageError(f"Missing word: expected one of {', '.join(next_words)} behind it")


def _run(command: Command, **values: object) -> None:
    from ostools.cli.running import run

    try:
        run(command, values)
    except KeyboardInterrupt:  # click would write an empty line first
        raise click.exceptions.Exit(_INTERRUPTED) from None


app = Program(
    "ostools",
    help="Measure representational collapse and over-squashing in decoder-only language models, "
    "against the theory. 'ostools VERB --help' shows the options of a verb.",
    epilog="Exit codes: 0 done; 1 'ostools doctor' found something missing, or a cell of 'ostools "
    "sweep' failed; 2 refused, with one line on stderr that says why; 130 interrupted. NO_COLOR is "
    "honoured. Example: ostools report --model google/gemma-7b --device cuda "
    "--out gemma.html",
    no_args_is_help=False,
)
for words in COMMANDS:
    for count in range(len(words)):
        app.add_command(_command(words[: count + 1]))
click.version_option(package_name="oversquashing-tools", message="ostools %(version)s")(app)


def main() -> NoReturn:
    """Run the command line and exit: a refusal is one line on stderr and code 2, no traceback."""
    _quieten_libraries()
    spin_briefly()
    code: int = 0
    try:
        code = app(standalone_mode=False, prog_name="ostools")
        sys.stdout.flush()
    except (KeyboardInterrupt, click.Abort):
        code = _INTERRUPTED
    except click.UsageError as error:
        name = error.ctx.command_path if error.ctx is not None else "ostools"
        code = _refuse(f"{error.format_message()} (see {name} --help)")
    except BrokenPipeError:
        # The reader (head, less) left: not our error, and nothing more may be written on exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:  # a name that is too long, a full disk
        code = _refuse(str(error))
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        code = _refuse(f"out of memory ({in_words(error)}): take shorter input, free memory")
    except ValueError as error:
        if not _REFUSALS & {kind.__name__ for kind in type(error).__mro__}:
            raise
        code = _refuse(f"{error}{_more(error)}")
    if code == _INTERRUPTED:
        sys.stderr.write("ostools: interrupted\n")
    sys.exit(code)


def _more(error: ValueError) -> str:
    """Where docs/errors.md says more of the refusal, or nothing."""
    module, trace = "", error.__traceback__
    while trace is not None:
        module, trace = trace.tb_frame.f_globals["__name__"], trace.tb_next
    section = _SECTIONS.get(type(error).__name__) or _SECTIONS.get(module)
    return f" (more in docs/errors.md: {section})" if section else ""


def _refuse(message: str) -> int:
    """Write one line to stderr, which no text in it can break, and return the exit code."""
    sys.stderr.write(f"ostools: {on_one_line(message)}\n")
    return 2


def spin_briefly() -> None:
    """Let a thread that waits for another sleep soon, unless the user has said how threads wait.

    Threads that wait for each other spin, which takes a busy machine's cores from both
    (docs/scale.md has the times). libgomp, which torch brings, reads this when it is loaded:
    https://gcc.gnu.org/onlinedocs/libgomp/GOMP_005fSPINCOUNT.html
    """
    if not _WAITING & set(os.environ):
        os.environ["GOMP_SPINCOUNT"] = "1000"


def _quieten_libraries() -> None:
    import warnings

    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "critical")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    warnings.simplefilter("ignore")
