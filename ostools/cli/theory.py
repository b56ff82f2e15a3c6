"""The declaration of the command about the paper's lemmas."""

from __future__ import annotations

from typing import Annotated

import typer

from ostools.commands.options import Out


def theory(
    lemma: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="B.1, 4.1, B.4, B.6, B.7, 5.2, 6.1, 6.2, windows, or an appendix name; repeatable."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of the numbers.")] = 0,
    lengths: Annotated[
        str | None, typer.Option(metavar="RANGE", help="At which n: of B.1, 4.1 and B.4 (even n only).")
    ] = None,
    out: Out = None,
) -> None:
    """Check the paper's lemmas on numbers, with and without their hypotheses.

    Exit code 0 if all pass, 1 if one fails, 2 for what cannot be done.

    \b
    Example:
      ostools theory --lemma B.4 --lemma 5.2 --out lemmas.png
    """
    from ostools.commands import theory as run

    raise typer.Exit(run.theory(lemma, seed, lengths, out))
