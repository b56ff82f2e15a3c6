"""The options that several commands have, and what users write there: read or refused before anything is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from ostools.ground.errors import InputError, unknown_name
from ostools.ground.lengths import parse_lengths as parse_lengths

RANGE = "Both ends included ({}), or a list (8,16,32), or both ({})."
"""What `--lengths` takes, for a range and a range with a number."""

Model = Annotated[
    str, typer.Option(metavar="NAME", help="'embedded' or another of `ostools models`, a directory, or a hub id.")
]
Method = Annotated[
    str, typer.Option(metavar="NAME", help="exact, sketch (a few random cotangents, with intervals), estimate or auto.")
]
Cotangents = Annotated[int, typer.Option(metavar="K", help="Random cotangents of a sketch.")]
Device = Annotated[str, typer.Option(metavar="NAME", help="'auto' (cuda, else cpu) or a torch device.")]
Dtype = Annotated[str, typer.Option(metavar="NAME", help="The dtype to load the model in, such as bfloat16.")]
LoadDtype = Annotated[
    str,
    typer.Option(
        "--load-dtype",
        metavar="NAME",
        help="The dtype to load the model in: bfloat16 for a large model that is stored in it.",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Chart (.html .png .svg .pdf) or table (.parquet .csv .json); else a table here."
    ),
]
Task = Annotated[
    str, typer.Option(metavar="NAME[:OPTIONS]", help="Such as copy-last or count-ones; ostools tasks lists them.")
]
Mitigated = Annotated[
    str | None,
    typer.Option(metavar="NAME[:OPTIONS]", help="Such as separator:every=3; ostools mitigations lists them."),
]
Lengths512 = Annotated[str, typer.Option(metavar="RANGE", help=RANGE.format("1:512", "1:64,128"))]
Lengths64 = Annotated[str, typer.Option(metavar="RANGE", help=RANGE.format("1:64", "1:32,64"))]
Seed = Annotated[int, typer.Option(metavar="N", help="Seed of the sequence, where the task draws one.")]
Seeds = Annotated[
    list[int] | None,
    typer.Option("--seed", metavar="N", help="Seed of a sequence that is drawn; repeatable. Default: 0."),
]
Chat = Annotated[
    bool | None, typer.Option("--chat/--no-chat", help="In the chat template or not; else where there is one.")
]
Elicit = Annotated[
    str | None,
    typer.Option(
        "--elicitation",
        metavar="NAME",
        help="chat, few-shot or zero-shot. Default: chat where there is a template, few-shot for a base model.",
    ),
]
InChat = Annotated[bool, typer.Option("--chat", help="The text as a user's turn in the chat template.")]
System = Annotated[
    str | None, typer.Option("--system", metavar="TEXT", help="In the chat template: a system prompt before it.")
]
Thinking = Annotated[
    bool, typer.Option("--thinking", help="In the chat template: leave its switch for thinking on. Default: off.")
]
At = Annotated[
    int | None,
    typer.Option(
        metavar="K", help="The position whose representation is meant, from 0; -1 is the last. Default: the last."
    ),
]
Site = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Distance where: residual (v^(L), or v), y, logits, attention (last block's heads)."
    ),
]
Per = Annotated[
    str | None, typer.Option(metavar="HOW", help="Of what: vector, head-chunk (d_model / H numbers), head-output.")
]
Norm = Annotated[str | None, typer.Option(metavar="NAME", help="l1, l2, linf or cosine.")]
AskedWithout = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Figures 3, 4, 6, 7: without chain of thought, none (C.1 alone) or answer-only."),
]
Examples = Annotated[
    str | None,
    typer.Option(
        metavar="PLACE", help="Figures 3, 4, 6, 7: worked examples before or after the question. Default: before."
    ),
]
Tidy = Annotated[bool, typer.Option("--tidy", help="Figures 3, 4, 6, 7: prompts without the slips of C.1.")]


def checked_items(items: str) -> Literal["text", "ids"]:
    """How items are put into a prompt. Raises `InputError` for anything else."""
    if items != "text" and items != "ids":
        raise unknown_name("items", items, ("text", "ids"))
    return items


def parse_layers(text: str) -> Literal["all"] | list[int]:
    """`all`, or numbers joined by commas. Raises `InputError` for anything else."""
    if text.strip() == "all":
        return "all"
    return layer_numbers(text, "'all' or numbers such as 0,2")


def layer_numbers(text: str, expected: str) -> list[int]:
    """Numbers joined by commas. Raises `InputError`, which says what was expected, for anything else."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and len(word) < 6 for word in words):
        raise InputError(f"--layers {text!r}: expected {expected}")
    return [int(word) for word in words]
