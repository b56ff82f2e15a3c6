"""`ostools repeats`: collapse beyond ones, and the law by which each distance falls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ostools.cli.kit import output
from ostools.cli.kit.options import Device, Lengths512, LoadDtype, Model, Out, parse_lengths
from ostools.cli.kit.steps import at_work, check, check_precisions, give

if TYPE_CHECKING:
    from ostools.experiments import Repeats
    from ostools.runs.forecast import Unloaded


def repeats(
    task: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="figure-5a, letters, words, text, ...; repeatable. Default: these four."),
    ] = None,
    lengths: Lengths512 = "1:256",
    dtype: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A precision; repeatable. Default: float32 and bfloat16.")
    ] = None,
    null: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="initialised, embeddings-kept, shuffled: null models beside the model; repeatable."
        ),
    ] = None,
    null_seeds: Annotated[int, typer.Option(metavar="N", help="How many null models of each kind.", min=1)] = 3,
    model: Model = "embedded",
    out: Out = None,
    device: Device = "auto",
    load_dtype: LoadDtype = "float32",
) -> None:
    """Measure collapse beyond ones: on letters, words and text.

    Each text is measured with the tokenizer's BOS and without it. It says by which law each distance falls, with
    the interval of its rate. With null models it asks whether the fall was there before training.

    \b
    Example:
      ostools repeats --lengths 1:128 --out repeats.png
      ostools repeats --task figure-5a --null initialised --null shuffled --out before.png
    """
    from ostools import experiments, tasks
    from ostools.cli.kit import largest
    from ostools.experiments.repeats import TASKS
    from ostools.ground.names import checked_names
    from ostools.models.null import KINDS

    check(out)
    wanted, chosen = parse_lengths(lengths), [tasks.task(name, tasks.CollapseTask) for name in task or TASKS]
    check_precisions(dtype)
    dtypes = tuple(dtype or ("float32", "bfloat16"))
    kinds = checked_names("kind of null model", null, KINDS) if null else []

    def memory(on: Unloaded) -> int:
        null_model = on.shape.element * on.shape.parameters if kinds else 0
        return null_model + max(largest.pairs(on, one, wanted, dtypes) for one in chosen)

    with at_work("comparing pairs", model, device, load_dtype, memory) as (loaded, progress):
        result = experiments.repeats(
            loaded,
            list(task or TASKS),
            lengths=wanted,
            dtypes=dtypes,
            nulls=kinds,
            seeds=range(null_seeds),
            progress=progress,
        )
    give(result, out, _show)


def _show(result: Repeats) -> None:
    summary: Any = result.summary
    columns = ["task", "items", "sink", "first_token", "first_token_share", "verdict", "rate", "low", "high", "status"]
    names = ["task", "items", "BOS", "first token", "its share", "decay", "rate", "low", "high", "pair at y"]
    several = summary["source"].nunique() > 1
    if several:
        columns, names = ["source", "draw", *columns], ["of", "seed", *names]
    rows = summary.astype({"draw": object})[columns].itertuples(index=False, name=None)
    left = 5 if several else 3
    output.print_table("||y - y*|| in float64 against copies n; 95% interval of the rate", names, rows, left=left)
    exact = summary[summary["exact_from"].notna()].to_dict("records")
    said = [f"{row['task']}, BOS {row['sink']}: below rounding from n = {row['exact_from']} on." for row in exact]
    output.print_text(["", *said] if said else [])
