"""`ostools counting`: the count from which answers are no longer told apart, predicted and measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ostools.cli.kit import output
from ostools.cli.kit.mitigated import Under
from ostools.cli.kit.options import Device, Lengths64, LoadDtype, Model, Out, Seed, parse_lengths
from ostools.cli.kit.steps import at_work, check, give

if TYPE_CHECKING:
    from ostools.measure import Counting
    from ostools.runs.forecast import Unloaded


def counting(
    task: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="count-ones, sum-ones, count-word, count-ones-bernoulli or count-ones-figure-5."
        ),
    ] = "count-ones",
    lengths: Lengths64 = "1:64",
    dtype: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A precision to answer in; repeatable. Default: float32 and bfloat16."),
    ] = None,
    seed: Seed = 0,
    mitigation: Under = None,
    model: Model = "embedded",
    out: Out = None,
    device: Device = "auto",
    load_dtype: LoadDtype = "float32",
) -> None:
    """Predict the count from which answers are no longer told apart, and measure where the model errs (Corollary 6.2).

    Predicted from a collapse curve: the count from which the answers to n and n + 1 are not expected to differ in their first
    token, as the prompts' difference is below its rounding noise. Measured: what the model answers, greedily, at every count.

    \b
    Example:
      ostools counting --task count-ones --lengths 1:64 --dtype float32 --dtype bfloat16 --out counting.png
    """
    from mitigations import optional
    from ostools import measure, tasks
    from ostools.cli.kit import largest
    from ostools.tasks.opened import OpenedPairs

    check(out)
    wanted, form = parse_lengths(lengths), tasks.AppendixTask(task)
    OpenedPairs(form)  # refuses a task whose answer is no count, before a model is loaded
    given = optional(mitigation)
    dtypes = tuple(dtype or ("float32", "bfloat16"))

    def memory(on: Unloaded) -> int:
        curve = largest.pairs(on, form, wanted, dtypes, mitigation=given)
        return max(curve, largest.answers(on, form, wanted, mitigation=given))

    with at_work("counting", model, device, load_dtype, memory) as (loaded, progress):
        result = measure.counting(
            loaded, form, lengths=wanted, dtypes=dtypes, seed=seed, mitigation=given, progress=progress
        )
    give(result, out, _show)


def _show(result: Counting) -> None:
    from ostools.reporting.findings.counting import counting_findings

    frame: Any = result.frame
    shown, part = output.some_of(frame["length"], "counts")
    task = frame["task"].iloc[0]
    title = f"Answers to {task}{part}; L2 distance of n and n + 1 at y, and that difference's rounding noise"
    names = ["dtype", "n", "right", "answer", "error", "distance", "its noise"]
    columns = ["dtype", "length", "key", "answer", "absolute_error", "distance", "pair_noise"]
    rows = frame[frame["length"].isin(shown)][columns].itertuples(index=False, name=None)
    output.print_table(title, names, (_readable(row) for row in rows))
    output.print_text(["", *counting_findings(result)])


def _readable(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """An answer may be anything that a model can write: one short visible word."""
    from ostools.reporting.look.theme import display_token

    return tuple(display_token(value, 24) if isinstance(value, str) else value for value in row)
