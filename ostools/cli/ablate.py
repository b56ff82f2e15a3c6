"""The declaration of the command that takes parts of a model out."""

from __future__ import annotations

from typing import Annotated

import typer

from ostools.commands.options import Device, Dtype, Model, Out


def ablate(
    task: Annotated[
        str, typer.Option(metavar="NAME[:OPTIONS]", help="Such as copy-first or count-ones; ostools tasks lists them.")
    ] = "copy-first",
    length: Annotated[int, typer.Option(metavar="N", help="Items of the sequence.")] = 20,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the sequence, where the task draws one.")] = 0,
    what: Annotated[str, typer.Option(metavar="KIND", help="heads, edges or layers.")] = "heads",
    target: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PART",
            help="A head 2.0 (layer.head), an edge 2.0:64:7 (query, key) or a sublayer 2.mlp; repeatable. Else all; of the "
            "edges those to which the last token attends most.",
        ),
    ] = None,
    top: Annotated[int, typer.Option(metavar="N", help="How many edges, where none is named.")] = 32,
    method: Annotated[str, typer.Option(metavar="NAME", help="What stands in: zero, or for heads mean.")] = "zero",
    measure: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="sensitivity, collapse, answers; repeatable. Else all that there can be."),
    ] = None,
    begun: Annotated[
        bool, typer.Option("--begun", help="Read at the right answer's line, begun, and not at the question's end.")
    ] = False,
    model: Model = "embedded",
    out: Out = None,
    device: Device = "auto",
    dtype: Dtype = "float32",
) -> None:
    """Take heads, edges or layers out: the real effect, and the predicted one.

    What each does to the sensitivity of the tokens that carry the answer, to the distance of n and n + 1 items, and to the
    probability of the right answer; beside it the first-order prediction, from one backward pass for all of them.

    \b
    Example:
      ostools ablate --task copy-first --length 20 --what heads --measure answers --measure collapse --out ablate.png
    """
    from ostools.commands import ablate as command

    parts = command.Parts(what, target, top, method)
    command.ablate(model, task, length, seed, parts, measure, begun, out, device, dtype)
