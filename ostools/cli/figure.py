"""The declaration of the command about the paper's figures."""

from __future__ import annotations

from typing import Annotated

import typer

from ostools.commands.options import Out


def figure(
    number: Annotated[int, typer.Argument(metavar="2..9", help="Which of the paper's figures.")],
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Figures 2 to 7: 'embedded', a directory, or a hub id.")
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(metavar="RANGE", help="Both ends included (1:512), or a list (8,16,32), or both (1:64,128)."),
    ] = None,
    seed: Annotated[
        list[int] | None, typer.Option(metavar="N", help="All but figure 2: a seed; repeatable. Else 0 to 4.")
    ] = None,
    dtype: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Figure 5: a precision; repeatable. Else float32 and bfloat16."),
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Figures 3, 4, 6, 7: longest chain of thought in tokens. Else 256."),
    ] = None,
    chat: Annotated[
        bool | None,
        typer.Option("--chat/--no-chat", help="Figures 2 to 4, 6, 7: the chat template. Else where there is one."),
    ] = None,
    device: Annotated[
        str | None, typer.Option(metavar="NAME", help="Figures 2 to 7: 'auto' (cuda, else cpu) or a torch device.")
    ] = None,
    out: Out = None,
) -> None:
    """Draw one of the paper's figures on a model (2 to 7), or on numbers (8, 9).

    \b
    2: copying the last or first digit, plain, with a hint, interleaved.
    3, 6: absolute error of sums and counts, with and without chain of thought (6: the paper's of an open model).
    4, 7: how often each number is the answer to them (7: the paper's of an open model).
    5: collapse (Theorem 4.2).
    8: collapse of one attention layer. 9: total variation of a softmax (Lemma 4.1).

    \b
    Example:
      ostools figure 2 --lengths 10:300 --out figure2.pdf
      ostools figure 6 --model google/gemma-7b --seed 0 --seed 1 --max-new-tokens 1024 --device cuda --out figure6.pdf
    """
    from ostools.commands import figure as run

    run.figure(
        number,
        {
            "--model": model,
            "--lengths": lengths,
            "--seed": seed or None,
            "--dtype": dtype or None,
            "--max-new-tokens": max_new_tokens,
            "--chat/--no-chat": chat,
            "--device": device,
        },
        out,
    )
