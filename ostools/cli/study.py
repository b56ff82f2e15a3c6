"""The declarations of the commands about what helps: studies of mitigations, and of window sizes."""

from __future__ import annotations

from typing import Annotated

import typer

from ostools.commands.options import Device, Dtype, Model, Out

Task = Annotated[
    str, typer.Option(metavar="NAME[:OPTIONS]", help="Such as copy-last or count-ones; ostools tasks lists them.")
]
Lengths = Annotated[
    str, typer.Option(metavar="RANGE", help="Both ends included (4:64), or a list (8,16,32), or both (4:32,64).")
]
Seeds = Annotated[
    list[int] | None, typer.Option("--seed", metavar="N", help="Seed of a sequence that is drawn; repeatable. Else 0.")
]
Chat = Annotated[
    bool | None, typer.Option("--chat/--no-chat", help="In the chat template or not; else where there is one.")
]


def study(
    mitigation: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:OPTIONS]",
            help="Such as separator:every=3, 'hint + sliding-window:window=64'; repeatable. Else separator, hint, interleave.",
        ),
    ] = None,
    task: Task = "copy-last",
    lengths: Lengths = "4:64",
    seeds: Seeds = None,
    dtypes: Annotated[
        list[str] | None,
        typer.Option(
            "--dtype", metavar="NAME", help="Of the collapse distance; repeatable. Else float32 and bfloat16."
        ),
    ] = None,
    chat: Chat = None,
    level: Annotated[
        float, typer.Option(metavar="P", help="Of the intervals; all verdicts hold together at it.")
    ] = 0.95,
    sensitivity_lengths: Annotated[
        int, typer.Option(metavar="N", help="Sensitivity, bound and time at so many of the lengths, evenly spread.")
    ] = 12,
    model: Model = "embedded",
    out: Out = None,
    device: Device = "auto",
    dtype: Annotated[
        str, typer.Option("--load-dtype", metavar="NAME", help="The dtype to load the model in.")
    ] = "float32",
) -> None:
    """Compare mitigations with none: answers, collapse, sensitivity, bound and cost.

    Every question with and without; effects with intervals over lengths, and a verdict each, which may be "no measurable
    effect".

    \b
    Example:
      ostools study --task count-ones --mitigation separator:every=3 --mitigation hint --lengths 4:64 --out study.html
    """
    from ostools.commands import study as command

    chosen = command.Chosen(tuple(seeds or (0,)), tuple(dtypes or command.DTYPES), chat, level, sensitivity_lengths)
    command.study(model, task, mitigation, lengths, chosen, out, device, dtype)


def windows(
    task: Task = "copy-last",
    lengths: Annotated[
        str | None, typer.Option("--lengths", metavar="RANGE", help="Numbers of items. Else 8,16,32.")
    ] = None,
    sizes: Annotated[
        str | None,
        typer.Option("--windows", metavar="RANGE", help="Sizes in tokens, such as 2:64. Else some up to the prompt's."),
    ] = None,
    layers: Annotated[
        str, typer.Option(metavar="WHICH", help="Layers that slide: all, alternate (0, 2, 4, ...) or 0,2.")
    ] = "all",
    sinks: Annotated[int, typer.Option(metavar="N", help="First tokens that stay visible from everywhere.")] = 0,
    pairs: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Whose distance: such as figure-5a. Else the task's own questions."),
    ] = None,
    seeds: Seeds = None,
    chat: Chat = None,
    model: Model = "embedded",
    out: Out = None,
    device: Device = "auto",
    dtype: Dtype = "float32",
) -> None:
    """Find the window size that trades collapse against the task.

    Sliding windows of every size: collapse distance against right answers and their probability, the Pareto front marked.

    \b
    Example:
      ostools windows --task copy-last --lengths 32 --windows 2:64 --out windows.png
    """
    from ostools.commands import study as command

    window = command.Window(sizes, layers, sinks, pairs, tuple(seeds or (0,)), chat)
    command.windows(model, task, lengths or "8,16,32", window, out, device, dtype)
