"""`ostools repeats`: collapse beyond ones, and the law by which each distance falls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ostools.cli.kit import output
from ostools.cli.kit.options import Device, DeviceMap, Lengths512, LoadDtype, Model, Out, parse_lengths
from ostools.cli.kit.steps import at_work, check, check_precisions, give

if TYPE_CHECKING:
    from ostools.experiments import Repeats
    from ostools.runs.forecast.forecast import Unloaded


def repeats(
    task: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="figure-5a, letters, words, text, ...; repeatable. Else these four."),
    ] = None,
    lengths: Lengths512 = "1:256",
    dtype: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A precision; repeatable. Else float32 and bfloat16.")
    ] = None,
    model: Model = "embedded",
    out: Out = None,
    device: Device = "auto",
    device_map: DeviceMap = None,
    load_dtype: LoadDtype = "float32",
) -> None:
    """Collapse beyond ones: letters, words, text.

    With the tokenizer's BOS and without it, and the law by which each distance falls, with an interval.

    \b
    Example:
      ostools repeats --lengths 1:128 --out repeats.png
    """
    from ostools import experiments, tasks
    from ostools.cli.kit import costs
    from ostools.experiments.repeats import TASKS
    from ostools.measure.passes.cost import Cost

    check(out)
    wanted, chosen = parse_lengths(lengths), [tasks.task(name, tasks.CollapseTask) for name in task or TASKS]
    check_precisions(dtype)
    dtypes = tuple(dtype or ("float32", "bfloat16"))

    def cost(on: Unloaded) -> Cost:
        with_and_without_bos = 2
        return sum((costs.collapse(on, one, wanted, dtypes) * with_and_without_bos for one in chosen), Cost())

    with at_work("comparing pairs", model, device, load_dtype, cost, device_map=device_map) as (loaded, progress):
        result = experiments.repeats(loaded, chosen, lengths=wanted, dtypes=dtypes, progress=progress)
    give(result, out, _show)


def _show(result: Repeats) -> None:
    summary: Any = result.summary
    columns = ["task", "sink", "first_token", "first_token_share", "verdict", "rate", "low", "high", "status"]
    names = ["task", "BOS", "first token", "its share", "decay", "rate", "low", "high", "collapse at y"]
    rows = summary[columns].itertuples(index=False, name=None)
    output.print_table("||y - y*|| in float64 against copies n; 95% interval of the rate", names, rows, left=2)
    exact = summary[summary["exact_from"].notna()].to_dict("records")
    said = [f"{row['task']}, BOS {row['sink']}: below rounding from n = {row['exact_from']} on." for row in exact]
    output.print_text(["", *said] if said else [])
