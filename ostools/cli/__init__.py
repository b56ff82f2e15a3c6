"""The command line: `ostools VERB [WHAT]`, made of the public functions (`commands`).

No module here imports torch, pandas or rich before a command runs, so that `--help` answers at
once. Results go to stdout, progress and refusals to stderr.
"""

from __future__ import annotations

import os
import sys
from functools import cache, partial
from typing import NoReturn

import click

from ostools.cli.commands import COMMANDS, VERBS, Command
from ostools.cli.global_options import on_one_line
from ostools.ground.errors import unknown_name

# What shells give a program that Ctrl-C ended.
_INTERRUPTED = 130

# A path, an option or an error of another library may be of any length; what is expected stands
# at its ends.
_LONGEST_REFUSAL = 2000

WAITING = frozenset({"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"})
"""Settings of the environment that say how OpenMP's threads wait."""
SPIN = "1000"

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
    "ostools.models.files.gguf_format.settings": _MODEL,
    "ostools.measure.jacobian.certificate": "The measurement disagrees with itself",
}
"""Sections of docs/errors.md, by the class of an error or the module that raised it."""


class _Leaf(click.Command):
    """One command of the table, with its examples and the further words of its verb."""

    def __init__(self, command: Command) -> None:
        from ostools.cli.options import declared

        text = f"{command.summary}\n\n{command.description}".replace("`", "").strip()
        run = partial(_run, command)
        super().__init__(command.name, params=declared(command), help=text, callback=run)
        self.command = command

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of this measurement, and below them those that all have."""
        from ostools.cli.options import CommonOption

        rows: dict[str, list[tuple[str, str]]] = {"Options": [], "Common options": []}
        for parameter in self.get_params(ctx):
            is_common = isinstance(parameter, CommonOption) or parameter.name == "help"
            record = parameter.get_help_record(ctx)
            if isinstance(parameter, click.Option) and record is not None:
                rows["Common options" if is_common else "Options"].append(record)
        for title, records in rows.items():
            _write(formatter, title, records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, and the WHATs of a verb behind its default."""
        with formatter.section("Example"):
            for line in self.command.example_lines:
                formatter.write(f"  {line}\n")
        if len(self.command.words) == 1:
            _write(formatter, f"More of ostools {self.name}", _summaries(self.command.words))


class _Choice(click.Command):
    """Words that need another one behind them, such as `ostools list`."""

    def __init__(self, words: tuple[str, ...]) -> None:
        super().__init__(" ".join(words), help=VERBS.get(words[0]), callback=self._refuse)
        self.words = words

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what may stand behind these words."""
        _write(formatter, "What", _summaries(self.words))

    def _refuse(self) -> None:
        next_words = ", ".join(words[len(self.words)] for words in longer_than(self.words))
        raise click.UsageError(f"Missing word behind {self.name}: expected one of {next_words}")


def _write(formatter: click.HelpFormatter, title: str, rows: list[tuple[str, str]]) -> None:
    if rows:
        with formatter.section(title):
            formatter.write_dl(rows)


def _summaries(words: tuple[str, ...]) -> list[tuple[str, str]]:
    """The commands whose words begin with these, each with what it does."""
    longer = longer_than(words)
    return [(" ".join(name), COMMANDS[name].summary.replace("`", "")) for name in longer]


class Program(click.Group):
    """`ostools`: the longest words of the table that a command line begins with are its command."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of these words, or the choice that they begin; None for neither."""
        words = tuple(cmd_name.split(" "))
        return _command(words) if words in COMMANDS or longer_than(words) else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the first words name, and the rest of the line."""
        count = 0
        while count < len(args) and _begins(tuple(args[: count + 1])):
            count += 1
        if not count and not args[0].startswith("-"):
            raise unknown_name("command", args[0], VERBS)
        if not count:
            return super().resolve_command(ctx, args)
        words, remaining = tuple(args[:count]), args[count:]
        command, name = _command(words), " ".join(words)
        takes_words = any(isinstance(parameter, click.Argument) for parameter in command.params)
        if remaining and not remaining[0].startswith("-") and not takes_words:
            if not longer_than(words):
                raise click.UsageError(f"{name} takes options alone, found {remaining[0]!r}", ctx)
            next_words = [longer[count] for longer in longer_than(words)]
            raise unknown_name(f"word behind {name}", remaining[0], next_words)
        return name, command, remaining

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs, each with the WHATs that it has."""
        rows = []
        for verb, summary in VERBS.items():
            more = [" ".join(words[1:]) for words in longer_than((verb,)) if len(words) == 2]
            if verb == "reproduce":
                more.append("figure 2..9")
            rows.append((verb, f"{summary} [{', '.join(more)}]" if more else summary))
        _write(formatter, "Commands", rows)


def longer_than(words: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The commands whose words begin with these."""
    return [name for name in COMMANDS if name[: len(words)] == words and name != words]


def _begins(words: tuple[str, ...]) -> bool:
    return words in COMMANDS or bool(longer_than(words))


@cache
def _command(words: tuple[str, ...]) -> click.Command:
    return _Leaf(COMMANDS[words]) if words in COMMANDS else _Choice(words)


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
        _drop_stdout()
    except OSError as error:  # a name that is too long, a full disk
        code = _refuse(str(error))
    except ValueError as error:
        if not _is_refusal(error):
            raise
        code = _refuse(f"{error}{_more(error)}")
    if code == _INTERRUPTED:
        sys.stderr.write("ostools: interrupted\n")
    sys.exit(code)


def _drop_stdout() -> None:
    """Send the rest of the buffer nowhere: written on exit, it would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _is_refusal(error: ValueError) -> bool:
    """InputError, or the own error of the packages below, without importing them (and torch)."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"InputError", "HookError", "MitigationError"})


def _more(error: ValueError) -> str:
    """Where docs/errors.md says more of the refusal, or nothing."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    module = trace.tb_frame.f_globals["__name__"] if trace else ""
    section = _SECTIONS.get(type(error).__name__) or _SECTIONS.get(module)
    return f" (more in docs/errors.md: {section})" if section else ""


def _refuse(message: str) -> int:
    """Write one line to stderr, which no text in it can break, and return the exit code."""
    line = on_one_line(message)
    if len(line) > _LONGEST_REFUSAL:
        line = f"{line[: _LONGEST_REFUSAL // 2]} ... {line[-_LONGEST_REFUSAL // 2 :]}"
    sys.stderr.write(f"ostools: {line}\n")
    return 2


def spin_briefly() -> None:
    """Let a thread that waits for another sleep soon, unless the user has said how threads wait.

    Threads that wait for each other spin, which takes a busy machine's cores from both
    (docs/scale.md has the times). libgomp, which torch brings, reads this when it is loaded:
    https://gcc.gnu.org/onlinedocs/libgomp/GOMP_005fSPINCOUNT.html
    """
    if not WAITING & set(os.environ):
        os.environ["GOMP_SPINCOUNT"] = SPIN


def _quieten_libraries() -> None:
    import warnings

    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "critical")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    warnings.simplefilter("ignore")
