"""The command line: `ostools report | sensitivity | path-sum | looseness | profile | flow | spectra | collapse | models`.

Only typer is imported here, so that `--help` answers at once; the work is in `ostools.commands`. Results go to stdout, progress
and refusals to stderr. Exit codes: 0 done; 2 refused, with one line that says why; 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from ostools.commands.options import Device, Dtype, Layers, MaxMemory, Model, Out, Prompt
from ostools.errors import InputError

# typer carries its own click and shows no base class of its usage errors: this is the one above BadParameter.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]

# What shells give a program that Ctrl-C ended; typer returns it, or raises, by where the interrupt met it.
_INTERRUPTED = 130

app = typer.Typer(
    name="ostools",
    help="Measure representational collapse and over-squashing in decoder-only language models, against the theory.",
    epilog="Example: ostools report --model google/gemma-7b --device cuda --out gemma.html",
    add_completion=False,
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


@app.command()
def report(
    model: Model = "embedded",
    prompt: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="The text to measure sensitivity on; else the paper's copy prompt."),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The HTML file to write.")] = Path("report.html"),
    device: Device = "auto",
    dtype: Dtype = "float32",
) -> None:
    """Measure everything, write one HTML file.

    The whole chain, in a report that needs no network.

    \b
    Example:
      ostools report
      ostools report --model ./my-model --prompt "The capital of France is" --out france.html
    """
    from ostools.commands import run

    run.report(model, prompt, out, device, dtype)


@app.command()
def sensitivity(
    prompt: Prompt,
    linearisation: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="full, frozen, frozen-attention, frozen-norm; repeatable. Else full and frozen."
        ),
    ] = None,
    layers: Layers = "0",
    method: Annotated[
        str, typer.Option(metavar="NAME", help="exact, estimate (random cotangents, with intervals) or auto.")
    ] = "auto",
    relative_error: Annotated[
        float, typer.Option(metavar="X", help="An estimate stops when every interval is that narrow.")
    ] = 0.1,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of an estimate.")] = 0,
    max_memory: MaxMemory = None,
    model: Model = "embedded",
    out: Out = None,
    device: Device = "auto",
    dtype: Dtype = "float32",
) -> None:
    """Measure what each token means to the last.

    The norms of d y_n / d v_i for every token i, exact or estimated; nothing held constant (full), or attention patterns and
    norm scales (frozen). Checked by finite differences on every run.

    \b
    Example:
      ostools sensitivity --prompt "The capital of France is" --out france.html
      ostools sensitivity --prompt "The capital of France is" --layers all --out layers.png
    """
    from ostools.commands import depth

    settings = depth.Measuring(linearisation, layers, method, relative_error, seed, max_memory)
    depth.sensitivity(model, prompt, settings, out, device, dtype)


@app.command(name="path-sum")
def path_sum(
    prompt: Prompt,
    variant: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="uniform, local, heads, edge, windowed(k), local-full, edge-full, theorem-5.1, theorem-b5, proof, multi-head, "
            "second-moment[-diagonal|-full], rollout; repeatable.",
        ),
    ] = None,
    positions: Annotated[
        str, typer.Option(metavar="WHICH", help="last, or all: the triangular matrix (to a table file).")
    ] = "last",
    mlp_norm: Annotated[str, typer.Option(metavar="NAME", help="svd, or product: cheaper and looser.")] = "svd",
    mlp_trace: Annotated[str, typer.Option(metavar="NAME", help="exact, or probes: for wide MLPs.")] = "exact",
    max_memory: MaxMemory = None,
    model: Model = "embedded",
    out: Out = None,
    device: Device = "auto",
    dtype: Dtype = "float32",
) -> None:
    """Bound and predict it (Theorem 5.1).

    The sum over paths from every token to the last, out of one forward pass and no gradient.

    \b
    Example:
      ostools path-sum --prompt "The capital of France is" --variant local --variant proof
    """
    from ostools.commands import depth

    settings = depth.Folding(variant, positions, mlp_norm, mlp_trace, max_memory)
    depth.path_sum(model, prompt, settings, out, device, dtype)


@app.command()
def looseness(
    prompt: Prompt, model: Model = "embedded", out: Out = None, device: Device = "auto", dtype: Dtype = "float32"
) -> None:
    """Split a certified bound's looseness into where it arises.

    From the paper's kind of bound (uniform) down to the measured norm, part by part, in decades that add up.

    \b
    Example:
      ostools looseness --prompt "The capital of France is" --out waterfall.png
    """
    from ostools.commands import depth

    depth.looseness(model, prompt, out, device, dtype)


@app.command()
def profile(
    prompt: Prompt, model: Model = "embedded", out: Out = None, device: Device = "auto", dtype: Dtype = "float32"
) -> None:
    """Say which tokens matter, and test for a U-shape.

    The measured profile with and without the sink, its shape with intervals, full against frozen.

    \b
    Example:
      ostools profile --prompt "The capital of France is"
    """
    from ostools.commands import depth

    depth.profile(model, prompt, out, device, dtype)


@app.command()
def flow(
    prompt: Prompt, model: Model = "embedded", out: Out = None, device: Device = "auto", dtype: Dtype = "float32"
) -> None:
    """Draw where sensitivity flows, layer by layer.

    The predicted share of every edge between tokens and layers, out of one forward pass.

    \b
    Example:
      ostools flow --prompt "The capital of France is" --out flow.png
    """
    from ostools.commands import depth

    depth.flow(model, prompt, out, device, dtype)


@app.command()
def spectra(
    prompt: Prompt, model: Model = "embedded", out: Out = None, device: Device = "auto", dtype: Dtype = "float32"
) -> None:
    """Follow the patterns' products through depth (Lemma B.6, Proposition 5.2).

    Eigenvalues of the row-stochastic matrices, and how fast their product's mass moves to the first token.

    \b
    Example:
      ostools spectra --prompt "The capital of France is" --out spectra.png
    """
    from ostools.commands import depth

    depth.spectra(model, prompt, out, device, dtype)


@app.command()
def collapse(
    task: Annotated[
        str, typer.Option(metavar="NAME", help="figure-5a, figure-5b, figure-5c or figure-5d.")
    ] = "figure-5a",
    lengths: Annotated[
        str, typer.Option(metavar="RANGE", help="Both ends included (1:512), or a list (8,16,32), or both (1:64,128).")
    ] = "1:256",
    dtype: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A precision to compare; repeatable. Else float32, bfloat16, float16."),
    ] = None,
    seed: Annotated[
        list[int] | None, typer.Option(metavar="N", help="Seed of the digit stream; repeatable. Else 0.")
    ] = None,
    model: Model = "embedded",
    out: Out = None,
    device: Device = "auto",
) -> None:
    """Measure representational collapse (Theorem 4.2).

    Distance between the last-token representations of a sequence and of the same with its last token repeated.

    \b
    Example:
      ostools collapse --task figure-5a --lengths 1:512 --dtype float32 --dtype bfloat16 --out collapse.html
    """
    from ostools.commands import run

    run.collapse(model, task, lengths, dtype, seed, out, device)


@app.command()
def models() -> None:
    """List what can be loaded.

    The embedded model, the families of architectures, and how to name a hub model.

    \b
    Example:
      ostools models
    """
    from ostools.commands import run

    run.models()


def main() -> NoReturn:
    """Run the command line and exit: a refusal is one line on stderr and code 2, never a traceback."""
    _quieten_libraries()
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
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    if code == _INTERRUPTED:
        sys.stderr.write("ostools: interrupted\n")
    sys.exit(code)


def _is_refusal(error: ValueError) -> bool:
    """InputError, or the hooks' own error, without importing hooks (and torch) to ask."""
    hooks = sys.modules.get("hooks")
    return isinstance(error, InputError) or (hooks is not None and isinstance(error, hooks.HookError))


def _refuse(message: str) -> int:
    """One line, in which whatever the user or a file put into it can neither break the line nor drive the terminal."""
    line = "".join(character if character.isprintable() else " " for character in message)
    sys.stderr.write(f"ostools: {' '.join(line.split())}\n")
    return 2


def _quieten_libraries() -> None:
    """What the libraries would tell on stderr (load reports, deprecations) is either checked by ostools or no news."""
    import warnings

    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "critical")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    warnings.simplefilter("ignore")
