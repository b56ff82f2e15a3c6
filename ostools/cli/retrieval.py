"""The declaration of the command about the U-shape."""

from __future__ import annotations

from typing import Annotated

import typer

from ostools.commands.options import Device, Dtype, Model, Out


def retrieval(
    model: Model = "embedded",
    length: Annotated[int, typer.Option(metavar="N", min=2, help="How many records.")] = 9,
    position: Annotated[
        list[int] | None,
        typer.Option(metavar="N", help="An index of the wanted record, from 0; repeatable. Else all, or 11 spread."),
    ] = None,
    records: Annotated[
        str, typer.Option(metavar="KIND", help="words, uuid (Liu et al.), or a file of theirs (JSON lines).")
    ] = "words",
    seed: Annotated[list[int] | None, typer.Option(metavar="N", help="A seed; repeatable. Else 0 to 5.")] = None,
    linearisation: Annotated[str, typer.Option(metavar="NAME", help="Of the sensitivity: full, frozen, ...")] = "full",
    norm: Annotated[str, typer.Option(metavar="NAME", help="operator or frobenius.")] = "operator",
    method: Annotated[str, typer.Option(metavar="NAME", help="auto, exact or estimate.")] = "auto",
    chat: Annotated[
        bool | None, typer.Option("--chat/--no-chat", help="The chat template. Else where there is one.")
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
      ostools retrieval --model google/gemma-7b --device cuda --records uuid --length 75 --method estimate --norm frobenius
    """
    from ostools.commands import retrieval as command

    options = {
        "length": length,
        "positions": position or None,
        "records": records,
        "seeds": seed or None,
        "linearisation": linearisation,
        "norm": norm,
        "method": method,
        "chat": chat,
    }
    command.retrieval(model, options, out, device, dtype)
