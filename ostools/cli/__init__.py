"""The command line. Each command is declared and done in one file of a room: `measure`, `experiments`, `runs`, `about`; what
they share is in `kit`.

No module here imports torch, pandas or rich before a command runs, so that `--help` answers at once. Results go to stdout,
progress and refusals to stderr.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, NoReturn

import typer

from ostools.cli.about.doctor import doctor
from ostools.cli.about.listings import mitigations, models, tasks
from ostools.cli.experiments.ablate import ablate
from ostools.cli.experiments.figure import figure
from ostools.cli.experiments.reasoning import chain_of_thought
from ostools.cli.experiments.repeats import repeats
from ostools.cli.experiments.retrieval import retrieval
from ostools.cli.experiments.study import study
from ostools.cli.experiments.windows import windows
from ostools.cli.kit.manners import on_one_line, with_manners
from ostools.cli.kit.panels import Panels
from ostools.cli.measure.attention import attention
from ostools.cli.measure.behaviour import behaviour
from ostools.cli.measure.collapse import collapse
from ostools.cli.measure.counting import counting
from ostools.cli.measure.fate import decodable, fate, readout
from ostools.cli.measure.nulls import nulls
from ostools.cli.measure.profiles import profile, spectra
from ostools.cli.measure.prompts import prompts
from ostools.cli.measure.sensitivity import path_sum, sensitivity
from ostools.cli.measure.use import contributions, faithfulness
from ostools.cli.measure.variation import attention_variation
from ostools.cli.runs.corpus import corpus
from ostools.cli.runs.explore import explore
from ostools.cli.runs.report import report
from ostools.cli.runs.reproduce import reproduce
from ostools.cli.runs.results import results
from ostools.cli.runs.run import run
from ostools.ground.errors import InputError
from ostools.ground.signals import EndedBySignal

# typer carries its own click and shows no base class of its usage errors: this is the one above BadParameter.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]

# What shells give a program that Ctrl-C ended; typer returns it, or raises, by where the interrupt met it.
_INTERRUPTED = 130

# A path, an option or an error of another library may be of any length; what is expected stands at its ends.
_LONGEST_REFUSAL = 2000

app = typer.Typer(
    name="ostools",
    cls=Panels,
    help="Measure representational collapse and over-squashing in decoder-only language models, against the theory.",
    epilog=(
        "Exit codes: 0 done; 1 `ostools doctor` found something missing, or a cell of `ostools run` failed; 2 refused, "
        "with one line on stderr that says why; 130 interrupted. NO_COLOR is honoured. "
        "Example: ostools report --model google/gemma-7b --device cuda --out gemma.html"
    ),
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> bool:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"ostools {version('oversquashing-tools')}")
        raise typer.Exit
    return wanted


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """The options of ostools itself."""


PANELS = {
    "Measure": (
        *(sensitivity, profile, contributions, faithfulness, nulls, path_sum, spectra),
        *(attention, attention_variation, collapse, repeats, counting, behaviour, decodable, readout, fate, ablate),
        *(retrieval, chain_of_thought),
    ),
    "The paper": (reproduce, figure),
    "Mitigate": (study, windows),
    "Sweep": (corpus, run, results),
    "Look": (report, explore, prompts, tasks, mitigations, models, doctor),
}
"""The commands, under the headings of `ostools --help`."""

for _panel, _commands in PANELS.items():
    for _command in _commands:
        app.command(rich_help_panel=_panel)(with_manners(_command))


def main() -> NoReturn:
    """Run the command line and exit: a refusal is one line on stderr and code 2, never a traceback."""
    _open_streams()
    _quieten_libraries()
    code = 0
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        code = _INTERRUPTED
    except _UsageError as error:
        context = getattr(error, "ctx", None)
        name = context.command_path if context is not None else "ostools"
        code = _refuse(f"{error.format_message()} (see {name} --help)")  # pyright: ignore[reportAttributeAccessIssue]
    except ValueError as error:
        if not _is_refusal(error):
            raise
        code = _refuse(str(error))
    except BrokenPipeError:
        # The reader (head, less) left: not our error, and nothing more may be written on exit.
        _drop_stdout()
    except OSError as error:
        # What the operating system refuses is the user's to mend: a name that is too long, a disk that is full.
        if error.filename is None:
            if _stdout_takes_more():
                raise
            _drop_stdout()
        code = _refuse(f"{'stdout' if error.filename is None else os.fsdecode(error.filename)}: {error.strerror}")
    except EndedBySignal:
        raise
    except SystemExit as stopped:
        code = _refuse(
            f"a plugin or a library asked to end the program (SystemExit: {stopped.code}), in the midst of its work"
        )
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # every library in Rust has one of its own, which is no Exception
            raise
        code = _refuse(f"a library failed: {type(error).__name__}: {error}")
    if code == _INTERRUPTED:
        sys.stderr.write("ostools: interrupted\n")
    sys.exit(code)


def _open_streams() -> None:
    """A stream that the shell has closed (`>&-`) is None in Python: what is written there is not wanted."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (for as long as the process)


def _stdout_takes_more() -> bool:
    """Whether an error that names no file was another's: a disk that is full under stdout refuses a line again."""
    try:
        print(flush=True)
    except OSError:
        return False
    return True


def _drop_stdout() -> None:
    """What is left in its buffer is written on exit, and would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _is_refusal(error: ValueError) -> bool:
    """InputError, or the own error of the packages below, without importing them (and torch) to ask."""
    below = (("hooks", "HookError"), ("mitigations", "MitigationError"))
    return isinstance(error, InputError) or any(
        name in sys.modules and isinstance(error, getattr(sys.modules[name], kind)) for name, kind in below
    )


def _refuse(message: str) -> int:
    """One line, in which whatever the user or a file put into it can neither break the line nor drive the terminal."""
    line = on_one_line(message)
    if len(line) > _LONGEST_REFUSAL:
        line = f"{line[: _LONGEST_REFUSAL // 2]} ... {line[-_LONGEST_REFUSAL // 2 :]}"
    sys.stderr.write(f"ostools: {line}\n")
    return 2


def _quieten_libraries() -> None:
    """What the libraries would tell on stderr (load reports, deprecations) is either checked by ostools or no news."""
    import warnings

    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "critical")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    warnings.simplefilter("ignore")
