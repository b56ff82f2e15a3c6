"""`ostools prompts`: every prompt with its id and key, for a model that runs elsewhere."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ostools.cli.kit import output
from ostools.cli.kit.manners import MANNERS
from ostools.cli.kit.options import RANGE, Examples, Seeds, Tidy, parse_lengths
from ostools.cli.kit.steps import tell_written
from ostools.ground.errors import InputError

LENGTHS = "1:64"
"""Those of `ostools behaviour`."""


def prompts(
    task: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[:OPTIONS]", help="Such as copy-last; ostools tasks lists them. Default: count-ones."
        ),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="none, answer-only, cot-zero-shot or cot-few-shot, where the task has it; of a figure none or answer-only.",
        ),
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(metavar="RANGE", help=f"{RANGE.format('1:64', '1:32,64')} Default: {LENGTHS}, or the figure's."),
    ] = None,
    mitigation: Annotated[
        str | None,
        typer.Option(metavar="NAME[:OPTIONS]", help="One that rewrites prompts, such as separator:every=3."),
    ] = None,
    seed: Seeds = None,
    figure: Annotated[
        int | None, typer.Option(metavar="2|3|4|6|7", help="All prompts of that figure, instead of one task's.")
    ] = None,
    examples: Examples = None,
    tidy: Tidy = False,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="A .jsonl file; else stdout.")] = None,
) -> None:
    """Write every prompt of a task or figure with its id, for a model that runs elsewhere.

    One JSON object a line. Send `prompt` as it stands; answer with {"id": ..., "text": ...}, one object a line, and read the
    answers by `ostools behaviour` with the same options, or by `ostools figure`.

    \b
    Example:
      ostools prompts --task copy-last --lengths 10:300 --out prompts.jsonl
    """
    from ostools.tasks.questions import as_row, prompts_jsonl, questions

    if out is not None:
        from ostools.results import checked_output

        checked_output(out, (".jsonl",), option="--out")
    if figure is not None:
        for name, value in (("--task", task), ("--mitigation", mitigation)):
            if value is not None:
                raise InputError(f"--figure {figure} has tasks of its own: leave {name} out")
        from ostools.experiments import figure_prompts

        wanted = None if lengths is None else parse_lengths(lengths)
        given = {"mode": mode, "examples": examples, "tidy": tidy or None}
        form = {name: value for name, value in given.items() if value is not None}
        asked = figure_prompts(figure, wanted, None if not seed else tuple(seed), **form)
    else:
        for name, value in (("--examples", examples), ("--tidy", tidy or None)):
            if value is not None:
                raise InputError(f"{name} is of a figure: write it into the task, such as count-ones:tidy=true")
        form = with_mode(task or "count-ones", mode)
        wanted = parse_lengths(lengths or LENGTHS)
        asked = questions(form, lengths=wanted, seeds=tuple(seed or (0,)), mitigation=mitigation)
    if out is not None:
        from ostools.results import write_atomically

        write_atomically(out, lambda part: part.write_text(prompts_jsonl(asked), encoding="utf-8"))
        tell_written(out)
    elif MANNERS.json:
        output.print_json([as_row(one) for one in asked])
    else:
        sys.stdout.write(prompts_jsonl(asked))


def with_mode(task: str, mode: str | None) -> str:
    """The task with the mode that stands in an option of its own."""
    return task if mode is None else f"{task}{',' if ':' in task else ':'}mode={mode}"
