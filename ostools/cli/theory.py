"""The declarations of the commands about the paper's lemmas and figures."""

from __future__ import annotations

from typing import Annotated

import typer

from ostools.commands.options import Out

Lengths = Annotated[
    str | None,
    typer.Option(metavar="RANGE", help="Both ends included (1:512), or a list (8,16,32), or both (1:64,128)."),
]


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


def figure(
    number: Annotated[int, typer.Argument(metavar="5|8|9", help="Which of the paper's figures.")],
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Figure 5: 'embedded', a directory, or a hub id. Else embedded.")
    ] = None,
    lengths: Lengths = None,
    seed: Annotated[list[int] | None, typer.Option(metavar="N", help="A seed; repeatable. Else 0 to 4.")] = None,
    dtype: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Figure 5: a precision; repeatable. Else float32 and bfloat16."),
    ] = None,
    device: Annotated[
        str | None, typer.Option(metavar="NAME", help="Figure 5: 'auto' (cuda, else cpu) or a torch device.")
    ] = None,
    out: Out = None,
) -> None:
    """Draw one of the paper's figures: 5, 8 or 9.

    5: collapse on a model (Theorem 4.2); 8: collapse of one attention layer; 9: total variation of a softmax (Lemma 4.1).

    \b
    Example:
      ostools figure 5 --lengths 1:256 --out figure5.png
      ostools figure 9 --out figure9.pdf
    """
    from ostools.commands import theory as run

    run.figure(number, model, lengths, seed, dtype, device, out)
