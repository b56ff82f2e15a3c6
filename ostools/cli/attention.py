"""The declaration of the command about attention, of one run or of two held against each other."""

from __future__ import annotations

from typing import Annotated

import typer

from ostools.commands.options import Device, Dtype, Model, Out


def attention(
    prompt: Annotated[str | None, typer.Option(metavar="TEXT", help="The text to measure on; or --task.")] = None,
    task: Annotated[
        str | None,
        typer.Option(metavar="NAME[:OPTIONS]", help="Such as copy-last, with --length; ostools tasks lists them."),
    ] = None,
    length: Annotated[int | None, typer.Option(metavar="N", help="Items of the task's sequence.")] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the sequence, where the task draws one.")] = 0,
    mitigation: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[:OPTIONS]", help="Compare: without it, and with it. ostools mitigations lists them."
        ),
    ] = None,
    against_prompt: Annotated[str | None, typer.Option(metavar="TEXT", help="Compare: with this text.")] = None,
    against_model: Annotated[str | None, typer.Option(metavar="NAME", help="Compare: with this model.")] = None,
    model: Model = "embedded",
    out: Out = None,
    device: Device = "auto",
    dtype: Dtype = "float32",
) -> None:
    """What the last token attends to, in every head; or how that differs.

    One of --mitigation, --against-prompt and --against-model makes it a comparison: side by side on one colour scale, and the
    difference at the tokens known to be the same. As .html every head's whole pattern too, to click through.

    \b
    Example:
      ostools attention --prompt "Can you copy the following number?1111" --out attention.html
      ostools attention --task copy-last --length 12 --mitigation separator:every=3 --out compared.png
    """
    from ostools.commands import attention as command

    asked = command.Asked(prompt, task, length, seed)
    command.attention(model, asked, command.Against(mitigation, against_prompt, against_model), out, device, dtype)
