"""The declarations of the commands about collapse."""

from __future__ import annotations

from typing import Annotated

import typer

from ostools.commands.options import Device, Model, Out


def collapse(
    task: Annotated[
        str, typer.Option(metavar="NAME", help="figure-5a, figure-5b, figure-5c or figure-5d.")
    ] = "figure-5a",
    lengths: Annotated[
        str, typer.Option(metavar="RANGE", help="Both ends included (1:512), or a list (8,16,32), or both (1:64,128).")
    ] = "1:256",
    dtype: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A precision to compare; repeatable. Else float32, bfloat16, float16."),
    ] = None,
    seed: Annotated[
        list[int] | None, typer.Option(metavar="N", help="Seed of the digit stream; repeatable. Else 0.")
    ] = None,
    model: Model = "embedded",
    out: Out = None,
    device: Device = "auto",
) -> None:
    """Measure representational collapse (Theorem 4.2).

    Distance between the last-token representations of a sequence and of the same with its last token repeated.

    \b
    Example:
      ostools collapse --task figure-5a --lengths 1:512 --dtype float32 --dtype bfloat16 --out collapse.html
    """
    from ostools.commands import run

    run.collapse(model, task, lengths, dtype, seed, out, device)
