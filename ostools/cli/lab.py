"""The declaration of the command about the synthetic laboratory."""

from __future__ import annotations

from typing import Annotated

import typer

from ostools.commands.options import Out


def lab(
    study: Annotated[str, typer.Option(metavar="NAME", help="positions, depth, precision or all.")] = "all",
    encoding: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="none, alibi, rope-100, rope-10000, rope-1000000, sinusoidal, learned; repeatable. Else all for positions, "
            "none and rope-10000 for the others.",
        ),
    ] = None,
    lengths: Annotated[
        str, typer.Option(metavar="RANGE", help="Both ends included (1:512), or a list (8,16,32), or both (1:64,128).")
    ] = "1:512",
    seed: Annotated[
        list[int] | None, typer.Option(metavar="N", min=0, help="Seed of a decoder; repeatable. Else 0 to 4.")
    ] = None,
    out: Out = None,
) -> None:
    """Study collapse in a random decoder: by positions, depth and precision.

    How fast the last representation stops changing with one more copy of a token, which law it follows, and whether the
    theorem's assumption about positions is met.

    \b
    Example:
      ostools lab --study positions --out encodings.png
    """
    from ostools.commands import lab as run

    run.lab(study, encoding, lengths, seed, out)
