"""`ostools retrieval`: one of many records, by where it stands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ostools.cli.kit import output
from ostools.cli.kit.options import Device, Dtype, Model, Out
from ostools.cli.kit.steps import at_work, check, give

if TYPE_CHECKING:
    from ostools.experiments import Retrieval
    from ostools.runs.forecast import Unloaded


def retrieval(
    model: Model = "embedded",
    length: Annotated[int, typer.Option(metavar="N", min=2, help="How many records.")] = 9,
    position: Annotated[
        list[int] | None,
        typer.Option(
            metavar="N", help="An index of the wanted record, from 0; repeatable. Default: all, or 11 spread."
        ),
    ] = None,
    records: Annotated[
        str, typer.Option(metavar="KIND", help="words, uuid (Liu et al.), or a file of theirs (JSON lines).")
    ] = "words",
    seed: Annotated[list[int] | None, typer.Option(metavar="N", help="A seed; repeatable. Default: 0 to 5.")] = None,
    linearisation: Annotated[str, typer.Option(metavar="NAME", help="Of the sensitivity: full, frozen, ...")] = "full",
    norm: Annotated[
        str | None, typer.Option(metavar="NAME", help="operator or frobenius. Default: operator where it is measured.")
    ] = None,
    method: Annotated[str, typer.Option(metavar="NAME", help="auto, exact, sketch or estimate.")] = "auto",
    chat: Annotated[
        bool | None, typer.Option("--chat/--no-chat", help="The chat template. Default: where there is one.")
    ] = None,
    out: Out = None,
    device: Device = "auto",
    dtype: Dtype = "float32",
) -> None:
    """Retrieve one of many records, by where it stands: answers, probability and sensitivity (is it a U?).

    Key-value records as in "Lost in the Middle"; within a seed only the wanted one moves.

    \b
    Example:
      ostools retrieval --length 9 --seed 0 --seed 1 --out retrieval.png
      ostools retrieval --model google/gemma-7b --device cuda --records uuid --length 75 --method sketch
    """
    from ostools import experiments
    from ostools.cli.kit import largest
    from ostools.experiments.retrieval import SEEDS
    from ostools.tasks.retrieve import RetrieveTask

    check(out)
    form = RetrieveTask(records=records)  # refuses records that are none, before a model is loaded

    def memory(on: Unloaded) -> int:
        return largest.sensitivity(on, on.longest(form, [length]).tokens, (linearisation,), method=method)

    with at_work("measuring", model, device, dtype, memory) as (loaded, progress):
        result = experiments.retrieval(
            loaded,
            position or None,
            length,
            seed or SEEDS,
            records=records,
            linearisation=linearisation,
            norm=norm,
            method=method,
            chat=chat,
            progress=progress,
        )
    give(result, out, _show)


def _show(result: Retrieval) -> None:
    from ostools.reporting.charts.answers.retrieval import retrieval_notes

    frame: Any = result.frame
    rows = []
    for position, here in frame.groupby("position"):
        means = [float(here[name].mean()) for name in ("log_probability", "sensitivity_mean", "sensitivity_others")]
        rows.append((position, len(here), int(here["found"].sum()), *means))
    title = f"Retrieving one of {frame['length'].iloc[0]} records, by its position; means over seeds"
    names = ["position", "seeds", "found", "log p", "sensitivity", "of the others"]
    output.print_table(title, names, rows)
    output.print_text(["", *retrieval_notes(result)])
