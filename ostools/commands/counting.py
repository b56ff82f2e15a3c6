"""`ostools counting`: load, predict and measure, then save to a file or show on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ostools as ost
from ostools.commands import output
from ostools.commands.loading import check, load, saved
from ostools.commands.options import parse_lengths

if TYPE_CHECKING:
    from ostools.measure.answers.counting import Counting

DTYPES = ("float32", "bfloat16")


def counting(
    model: str,
    task: str,
    lengths: str,
    dtypes: Sequence[str] | None,
    seed: int,
    out: Path | None,
    device: str,
) -> None:
    """`ostools counting`."""
    from ostools.tasks.opened import OpenedPairs

    check(out)
    wanted = parse_lengths(lengths)
    form = ost.tasks.AppendixTask(task)
    OpenedPairs(form)  # refuses a task whose answer is no count, before a model is loaded
    loaded = load(model, device, "float32")
    with output.progress("counting") as progress:
        result = ost.counting(
            loaded, form, lengths=wanted, dtypes=tuple(dtypes or DTYPES), seed=seed, progress=progress
        )
    if not saved(result, out):
        _show(result)


def _show(result: Counting) -> None:
    from ostools.reporting.findings.counting import counting_findings

    frame: Any = result.frame
    shown, part = output.some_of(frame["length"], "counts")
    task = frame["task"].iloc[0]
    title = f"Answers to {task}{part}; L2 distance of n and n + 1 at y, and that difference's rounding noise"
    names = ["dtype", "n", "right", "answer", "error", "distance", "its noise"]
    columns = ["dtype", "length", "key", "answer", "absolute_error", "distance", "pair_noise"]
    rows = frame[frame["length"].isin(shown)][columns].itertuples(index=False, name=None)
    output.stdout().print(output.table(title, names, (_readable(row) for row in rows)))
    output.print_text(["", *counting_findings(result)])


def _readable(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """An answer may be anything that a model can write: one short visible word."""
    from ostools.reporting.look.theme import display_token

    return tuple(display_token(value, 24) if isinstance(value, str) else value for value in row)
