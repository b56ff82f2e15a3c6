"""`ostools evaluate prompts`: write the prompts out for a model that runs elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ostools.cli import terminal
from ostools.cli.global_options import GLOBALS
from ostools.cli.hosted import hosted_questions
from ostools.ground.errors import InputError

if TYPE_CHECKING:
    from ostools.mitigations import Mitigation
    from ostools.tasks import Task


def prompts(
    *,
    task: Task | str | None = None,
    lengths: Sequence[int] | None = None,
    seeds: Sequence[int] | None = None,
    mitigation: Mitigation | str | None = None,
    figure: Literal["2", "3", "4", "6", "7", "all"] | None = None,
    out: Path | None = None,
) -> None:
    """Write every prompt of a task or figure with its id, for a model that runs elsewhere.

    One JSON object a line. Send `prompt` as it stands; answer with {"id": ..., "text": ...}, one
    object a line, and read the answers by `ostools evaluate --answers` with the same options, or by
    `ostools reproduce figure N --answers`.

    Args:
        lengths: numbers of items; without it 1:64, or those of the figure.
        seeds: one sequence for each, of a task that draws its sequence; without it 0.
        figure: all prompts of that figure, instead of one task's; all: those of 'ostools reproduce
            --answers'.
        out: a .jsonl file; else stdout.
    """
    from ostools.tasks.questions import as_row, prompts_jsonl

    if out is not None:
        from ostools.results import checked_output

        checked_output(out, (".jsonl",), option="--out")
    options: dict[str, object] = {"lengths": lengths, "seeds": seeds}
    selection = {name: value for name, value in options.items() if value is not None}
    if figure is None:
        selection |= {"task": task or "count-ones", "mitigation": mitigation}
        questions = hosted_questions({"lengths": range(1, 65)} | selection)
    else:
        of_figure = {"task": task, "mitigation": mitigation}
        of_figure |= selection if figure == "all" else {}
        if used := [name for name, value in of_figure.items() if value is not None]:
            raise InputError(f"--figure {figure} has a --{used[0]} of its own: leave it out")
        questions = hosted_questions(selection, figure)
    if out is not None:
        from ostools.results import write_atomically

        write_atomically(out, lambda part: part.write_text(prompts_jsonl(questions), "utf-8"))
        terminal.tell_written(out)
    elif GLOBALS.json:
        terminal.print_json([as_row(question) for question in questions])
    else:
        sys.stdout.write(prompts_jsonl(questions))
