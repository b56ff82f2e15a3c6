"""The declarations of the commands about collapse."""

from __future__ import annotations

from typing import Annotated

import typer

from ostools.commands.options import Device, Model, Out

Lengths = Annotated[
    str, typer.Option(metavar="RANGE", help="Both ends included (1:512), or a list (8,16,32), or both (1:64,128).")
]


def collapse(
    task: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="figure-5a, -5b, -5c, -5d, letters, words, text, or a task at n and n + 1 items such as count-ones. Else "
            "figure-5a.",
        ),
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Instead of a task: your own text, its last token repeated.")
    ] = None,
    item: Annotated[
        str | None, typer.Option(metavar="TEXT", help="With --prompt: what is repeated behind it, such as ' and'.")
    ] = None,
    items: Annotated[
        str,
        typer.Option(metavar="HOW", help="text, or ids: each item by its own token, whatever the tokenizer merges."),
    ] = "text",
    no_bos: Annotated[bool, typer.Option("--no-bos", help="Take the tokenizer's BOS out of every prompt.")] = False,
    lengths: Lengths = "1:256",
    dtype: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="float32, bfloat16, float16, float64: the model cast; or one part stored in few bits: int8-weights, "
            "bfloat16-residual, float8_e4m3fn-kv, ...; repeatable. Else float32, bfloat16, float16.",
        ),
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
      ostools collapse --prompt "Once upon a time" --item " and" --no-bos --dtype int8-kv --dtype bfloat16
    """
    from ostools.commands import collapsing

    chosen = collapsing.Sequences(task, prompt, item, items, not no_bos)
    collapsing.collapse(model, chosen, lengths, dtype, seed, out, device)


def repeats(
    prompt: Annotated[
        list[str] | None,
        typer.Option(
            "--task", metavar="NAME", help="figure-5a, letters, words, text, ...; repeatable. Else these four."
        ),
    ] = None,
    lengths: Lengths = "1:256",
    dtype: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A precision; repeatable. Else float32 and bfloat16.")
    ] = None,
    model: Model = "embedded",
    out: Out = None,
    device: Device = "auto",
) -> None:
    """Collapse beyond ones: letters, words, text.

    With the tokenizer's BOS and without it, and the law by which each distance falls, with an interval.

    \b
    Example:
      ostools repeats --lengths 1:128 --out repeats.png
    """
    from ostools.commands import collapsing

    collapsing.repeats(model, prompt, lengths, dtype, out, device)
