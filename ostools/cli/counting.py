"""The declaration of the command about counting."""

from __future__ import annotations

from typing import Annotated

import typer

from ostools.commands.options import Device, Model, Out


def counting(
    task: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="count-ones, sum-ones, count-word, count-ones-bernoulli or count-ones-figure-5."
        ),
    ] = "count-ones",
    lengths: Annotated[
        str, typer.Option(metavar="RANGE", help="Both ends included (1:64), or a list (8,16,32), or both (1:32,64).")
    ] = "1:64",
    dtype: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A precision to answer in; repeatable. Else float32 and bfloat16."),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the sequence, where the task draws one.")] = 0,
    model: Model = "embedded",
    out: Out = None,
    device: Device = "auto",
) -> None:
    """Predict the count from which answers are no longer told apart, and measure where the model errs (Corollary 6.2).

    Predicted from a collapse curve: the count from which the answers to n and n + 1 are not expected to differ in their first
    token, as the prompts' difference is below its rounding noise. Measured: what the model answers, greedily, at every count.

    \b
    Example:
      ostools counting --task count-ones --lengths 1:64 --dtype float32 --dtype bfloat16 --out counting.png
    """
    from ostools.commands import counting as command

    command.counting(model, task, lengths, dtype, seed, out, device)
