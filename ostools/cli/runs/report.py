"""`ostools report`: everything in one HTML file, of a model or of a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ostools.cli.kit import output
from ostools.cli.kit.chat import PLAIN
from ostools.cli.kit.manners import MANNERS
from ostools.cli.kit.options import Device, Dtype, Model, parse_lengths
from ostools.cli.kit.prompts import Ids, chosen
from ostools.cli.kit.steps import at_work, tell_written
from ostools.ground.errors import InputError

if TYPE_CHECKING:
    from ostools.measure.passes.cost import Cost
    from ostools.runs.forecast.forecast import Unloaded


def report(
    model: Model = "embedded",
    prompt: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="The text to measure sensitivity on; else the paper's copy prompt."),
    ] = None,
    ids: Ids = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The HTML file to write.")] = Path("report.html"),
    section: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="collapse, precision, sensitivity, looseness, layers, attention, behaviour, fate, mitigations, theory; "
            "repeatable. Else all but what is forecast to take long.",
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
    if run is not None:
        given = {
            "--model": model != "embedded",
            "--prompt": prompt is not None,
            "--ids": ids is not None,
            "--section": bool(section),
        }
        given |= {"--lengths": lengths is not None, "--device": device != "auto", "--dtype": dtype != "float32"}
        given |= {name: value is not None for name, value in MANNERS.of_model.items()}
        _on_run(run, out, [name for name, there in given.items() if there])
        return
    from ostools import reporting
    from ostools.reporting.report.cost import report_cost
    from ostools.reporting.report.report import LONGEST, default_prompt
    from ostools.results import checked_output

    checked_output(out, (".html",), asked="--out")
    given = chosen(prompt, ids)
    wanted = None if lengths is None else parse_lengths(lengths)

    def cost(on: Unloaded) -> Cost:
        text = default_prompt() if given is None else given
        longest = range(1, LONGEST + 1) if wanted is None else wanted
        return report_cost(on, text, longest, section or None)

    with at_work("measuring", model, device, dtype, cost) as (loaded, progress):
        read = None if given is None else PLAIN.prompt(loaded, given)
        written = reporting.report(
            loaded, prompt=read, out=out, sections=section or None, lengths=wanted, progress=progress
        )
    tell_written(written)


def _on_run(directory: Path, out: Path, given: list[str]) -> None:
    """The report on a sweep; `given`: options that say what to measure."""
    if given:
        raise InputError(
            f"--run reports on cells that are there and measures nothing: leave out {' and '.join(given)}; "
            "what a sweep measures stands in its file"
        )
    from ostools import reporting

    tell_written(reporting.report(run=directory, out=out, say=output.note))
