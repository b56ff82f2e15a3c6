"""The declarations of the commands about everything: the report, and what can be loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ostools.commands.options import Device, Dtype, Model


def report(
    model: Model = "embedded",
    prompt: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="The text to measure sensitivity on; else the paper's copy prompt."),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The HTML file to write.")] = Path("report.html"),
    section: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="collapse, precision, sensitivity, looseness, layers, attention, behaviour, mitigations, theory; repeatable. "
            "Else all; looseness only where it is cheap.",
        ),
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(metavar="RANGE", help="Of the collapse sequences (1:512 or 8,16,32). Else 1:256, or what fits."),
    ] = None,
    device: Device = "auto",
    dtype: Dtype = "float32",
    run: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Report on what `ostools run` stored there instead; measures nothing."),
    ] = None,
) -> None:
    """Measure everything, write one HTML file.

    The whole chain, in a report that needs no network. For a large model choose sections. With --run, a report on the cells of
    a sweep, finished or not, with what failed and why.

    \b
    Example:
      ostools report
      ostools report --model ./my-model --prompt "The capital of France is" --out france.html
      ostools report --section collapse --section precision --lengths 1:128
      ostools report --run sweep --out sweep.html
    """
    from ostools.commands import run as command

    if run is None:
        command.report(model, prompt, out, section, lengths, device, dtype)
    else:
        given = {"--model": model != "embedded", "--prompt": prompt is not None, "--section": bool(section)}
        given |= {"--lengths": lengths is not None, "--device": device != "auto", "--dtype": dtype != "float32"}
        command.report_on_run(run, out, [name for name, there in given.items() if there])


def models() -> None:
    """List what can be loaded.

    The embedded model, the families of architectures, and how to name a hub model.

    \b
    Example:
      ostools models
    """
    from ostools.commands import run

    run.models()


def tasks() -> None:
    """List the tasks, the built-in ones and those of other distributions.

    With their options: NAME:key=value,key=value.

    \b
    Example:
      ostools tasks
    """
    from ostools.commands import run

    run.tasks()


def mitigations() -> None:
    """List the mitigations, the built-in ones and those of other distributions.

    With their options: NAME:key=value,key=value; several joined by " + " are applied in that order.

    \b
    Example:
      ostools mitigations
    """
    from ostools.commands import run

    run.mitigations()


def doctor() -> None:
    """Say what this installation has, and what is missing.

    Versions, device, memory, the embedded model, extras. Exit code 1 where something that is needed is missing.

    \b
    Example:
      ostools doctor
    """
    from ostools.commands import doctor as run

    raise typer.Exit(run.doctor())
