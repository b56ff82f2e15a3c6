"""`ostools report`: everything in one HTML file, of a model or of a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ostools.cli.kit import output
from ostools.cli.kit.chat import PLAIN
from ostools.cli.kit.manners import MANNERS
from ostools.cli.kit.options import Device, Dtype, parse_lengths
from ostools.cli.kit.prompts import Ids, chosen
from ostools.cli.kit.steps import at_work, each_at_work, tell_written
from ostools.ground.errors import InputError

if TYPE_CHECKING:
    from ostools.runs.forecast import Unloaded


def report(
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="'embedded' (else this) or another of `ostools models`, a directory, or a hub id; twice: a report of both.",
        ),
    ] = None,
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
            help="collapse, precision, sensitivity, layers, attention, behaviour, fate, mitigations; "
            "repeatable. Default: all but what takes long on a large model.",
        ),
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(
            metavar="RANGE", help="Of the collapse sequences (1:512 or 8,16,32). Default: 1:256, or what fits."
        ),
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
    a sweep, finished or not, with what failed and why. With --model twice, a report of both models: one is in memory at a time.

    \b
    Example:
      ostools report
      ostools report --model ./my-model --prompt "The capital of France is" --out france.html
      ostools report --model embedded --model embedded-short --out both.html
      ostools report --section collapse --section precision --lengths 1:128
      ostools report --run sweep --out sweep.html
    """
    if run is not None:
        given = {
            "--model": bool(model),
            "--prompt": prompt is not None,
            "--ids": ids is not None,
            "--section": bool(section),
        }
        given |= {"--lengths": lengths is not None, "--device": device != "auto", "--dtype": dtype != "float32"}
        given |= {name: value is not None for name, value in MANNERS.of_model.items()}
        _on_run(run, out, [name for name, there in given.items() if there])
        return
    from ostools.cli.kit import largest
    from ostools.cli.kit.limits import within_time
    from ostools.reporting.report.asked import extent_of
    from ostools.reporting.report.report import LONGEST, default_prompt
    from ostools.reporting.report.report import report as report_on
    from ostools.results import checked_output

    checked_output(out, (".html",), option="--out")
    given = chosen(prompt, ids)
    wanted = None if lengths is None else parse_lengths(lengths)

    def memory(on: Unloaded) -> int:
        text = default_prompt() if given is None else given
        lengths = extent_of(on.shape).lengths(LONGEST) if wanted is None else wanted
        return largest.report(on, text, lengths, section or None)

    names = _checked_models(model or ["embedded"], ids)
    asked = {"out": out, "sections": section or None, "lengths": wanted}
    if len(names) == 2:
        models, progress = each_at_work("measuring", names, device, dtype, memory)
        with within_time():
            written = report_on(models=models, prompt=prompt, progress=progress, **asked)
    else:
        with at_work("measuring", names[0], device, dtype, memory) as (loaded, progress):
            read = None if given is None else PLAIN.prompt(loaded, given)
            written = report_on(loaded, prompt=read, progress=progress, **asked)
    tell_written(written)


def _checked_models(names: list[str], ids: str | None) -> list[str]:
    """One model, or two that differ, whose prompt is a text."""
    if len(names) > 2:
        raise InputError(f"--model: expected one model or two, found {len(names)}: write a report of each pair")
    if len(names) == 2:
        from ostools.models.files.sources import locate

        if MANNERS.base is not None or ids is not None:
            raise InputError(
                f"{'--ids' if ids is not None else '--base'} is of one model, found two of --model: "
                f"{'give --prompt' if ids is not None else 'merge the adapter into its base first'}"
            )
        if names[0] == names[1] or locate(names[0], None).directory == locate(names[1], None).directory:
            raise InputError(f"--model: expected two models that differ, found {names[0]} twice: leave one out")
    return names


def _on_run(directory: Path, out: Path, given: list[str]) -> None:
    """The report on a sweep; `given`: options that say what to measure."""
    if given:
        raise InputError(
            f"--run reports on cells that are there and measures nothing: leave out {' and '.join(given)}; "
            "what a sweep measures stands in its file"
        )
    from ostools.reporting.report.report import report as report_on

    tell_written(report_on(run=directory, out=out, say=output.note))
