"""The declaration of the command about what a model answers."""

from __future__ import annotations

from typing import Annotated

import typer

from ostools.commands.options import Device, Dtype, Model, Out


def behaviour(
    task: Annotated[
        str, typer.Option(metavar="NAME[:OPTIONS]", help="Such as copy-last or count-ones; ostools tasks lists them.")
    ] = "count-ones",
    mode: Annotated[
        str | None, typer.Option(metavar="NAME", help="none, cot-zero-shot or cot-few-shot, where the task has it.")
    ] = None,
    lengths: Annotated[
        str, typer.Option(metavar="RANGE", help="Both ends included (1:64), or a list (8,16,32), or both (1:32,64).")
    ] = "1:64",
    mitigation: Annotated[
        str | None,
        typer.Option(metavar="NAME[:OPTIONS]", help="Such as separator:every=3; ostools mitigations lists them."),
    ] = None,
    seed: Annotated[
        list[int] | None, typer.Option(metavar="N", help="Seed of a sequence that is drawn; repeatable. Else 0.")
    ] = None,
    temperature: Annotated[float, typer.Option(metavar="T", help="0: the most likely token at every step.")] = 0.0,
    samples: Annotated[int, typer.Option(metavar="N", help="Answers to each prompt, at a temperature.")] = 1,
    max_new_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Where an answer is cut; else behind the longest right one.")
    ] = None,
    chat: Annotated[
        bool | None, typer.Option("--chat/--no-chat", help="In the chat template or not; else where there is one.")
    ] = None,
    probability: Annotated[
        bool, typer.Option("--probability/--no-probability", help="How likely the right line was, too.")
    ] = True,
    model: Model = "embedded",
    out: Out = None,
    device: Device = "auto",
    dtype: Dtype = "float32",
) -> None:
    """Ask a model a task at every length: what is right, how far off the rest is, how likely the right answer was.

    Exact match of the final answer line, with Wilson intervals where prompts or answers were drawn; answers that cannot be read
    are counted apart.

    \b
    Example:
      ostools behaviour --task count-ones --lengths 1:64 --mitigation separator:every=3 --out behaviour.png
    """
    from ostools.commands import behaviour as command

    asked = command.Asked(tuple(seed or (0,)), chat, temperature, samples, max_new_tokens, probability)
    command.behaviour(model, task, mode, lengths, mitigation, asked, out, device, dtype)
