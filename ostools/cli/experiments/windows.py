"""`ostools windows`: the window size that trades collapse against the task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ostools.cli.kit import output
from ostools.cli.kit.options import Chat, Device, Dtype, Model, Out, Seeds, Task, layer_numbers, parse_lengths
from ostools.cli.kit.steps import at_work, check, give
from ostools.ground.errors import InputError

if TYPE_CHECKING:
    from ostools.experiments import WindowStudy
    from ostools.runs.forecast import Unloaded


def windows(
    task: Task = "copy-last",
    lengths: Annotated[
        str | None, typer.Option("--lengths", metavar="RANGE", help="Numbers of items. Default: 8,16,32.")
    ] = None,
    sizes: Annotated[
        str | None,
        typer.Option(
            "--windows", metavar="RANGE", help="Sizes in tokens, such as 2:64. Default: some up to the prompt's."
        ),
    ] = None,
    layers: Annotated[
        str, typer.Option(metavar="WHICH", help="Layers that slide: all, alternate (0, 2, 4, ...) or 0,2.")
    ] = "all",
    sinks: Annotated[int, typer.Option(metavar="N", help="First tokens that stay visible from everywhere.")] = 0,
    pairs: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Whose distance: such as figure-5a. Default: the task's own questions."),
    ] = None,
    seed: Seeds = None,
    chat: Chat = None,
    model: Model = "embedded",
    out: Out = None,
    device: Device = "auto",
    dtype: Dtype = "float32",
) -> None:
    """Find the window size that trades collapse against the task.

    Sliding windows of every size: collapse distance against right answers and their probability, the Pareto front marked.

    \b
    Example:
      ostools windows --task copy-last --lengths 32 --windows 2:64 --out windows.png
    """
    from ostools import experiments, tasks
    from ostools.cli.kit import largest

    check(out)
    wanted, form = parse_lengths(lengths or "8,16,32"), tasks.task(task)
    chosen, sliding = _sizes(sizes), _layers(layers)
    seeds = tuple(seed or (0,))

    def memory(on: Unloaded) -> int:
        return max(largest.answers(on, form, wanted, each=len(seeds)), largest.pairs(on, form, wanted, ("float64",)))

    with at_work("sliding", model, device, dtype, memory) as (loaded, progress):
        result = experiments.windows(
            loaded,
            form,
            lengths=wanted,
            windows=chosen,
            seeds=seeds,
            layers=sliding,
            sinks=sinks,
            pairs=pairs,
            chat=chat,
            progress=progress,
        )
    give(result, out, _show)


def _sizes(text: str | None) -> list[int] | None:
    """The sizes; the refusal names the option that it is about."""
    if text is None:
        return None
    try:
        return parse_lengths(text)
    except InputError as error:
        raise InputError(str(error).replace("--lengths", "--windows").replace("lengths", "windows")) from None


def _layers(text: str) -> Literal["all", "alternate"] | list[int]:
    if text == "all" or text == "alternate":
        return text
    return layer_numbers(text, "'all', 'alternate' or numbers such as 0,2")


def _show(result: WindowStudy) -> None:
    parameters = result.provenance.parameters
    table: Any = result.summary
    title = f"Sliding windows on {parameters['task']}: answers against collapse (L2 at y, float64, of {parameters['pairs']})"
    columns = ["active", "questions", "accuracy", "wilson_low", "wilson_high", "log_probability", "distance"]
    fronts = ["front", "front_probability"]
    names = ["window", "acted", "of", "right", "95% from", "to", "log p", "distance", "front", "front (log p)"]
    table = table.assign(window=table["window"].astype("string").fillna("none"))
    rows = [
        (row["window"], *(row[name] for name in columns), *("*" if row[name] else "" for name in fronts))
        for row in table.to_dict("records")
    ]
    output.print_table(title, names, rows)
    if bool((table["floored"] > 0).any()):
        counts = ", ".join(f"{row['window']} ({row['floored']})" for row in table.to_dict("records") if row["floored"])
        output.print_text(
            ["", f"Below rounding, and counted as that: distances of windows {counts}; their mean is an upper limit."]
        )
    output.print_text(["", "*: no other window is better in one and as good in the other (point estimates)."])
