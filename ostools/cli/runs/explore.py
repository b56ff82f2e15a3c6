"""`ostools explore`: the explorer in the browser."""

from __future__ import annotations

from typing import Annotated

import typer

from ostools.cli.kit import output
from ostools.cli.kit.manners import MANNERS
from ostools.cli.kit.options import Device, Dtype, Model
from ostools.cli.kit.steps import at_work


def explore(
    model: Model = "embedded",
    prompt: Annotated[str, typer.Option(metavar="TEXT", help="What stands in the field at first.")] = "",
    against_model: Annotated[
        str | None, typer.Option(metavar="NAME", help="A second model, which the page can hold beside the first.")
    ] = None,
    port: Annotated[int, typer.Option(metavar="N", help="The port to listen on; 0 takes a free one.")] = 0,
    host: Annotated[
        str, typer.Option(metavar="NAME", help="Listen there; beyond loopback the address printed holds a token.")
    ] = "127.0.0.1",
    device: Device = "auto",
    dtype: Dtype = "float32",
) -> None:
    """Look at a prompt in the browser, as you type it.

    A page on this machine: the tokens of the prompt, coloured by attention at once, by a sketch of the sensitivity and by the
    measured norms a little later, with charts, and the code that gives the same. Another prompt, a mitigation or a second
    model may stand beside it. Prints its address. Ctrl-C ends it.

    \b
    Example:
      ostools explore --prompt "The capital of France is" --port 8765
    """
    from ostools.explorer import explore
    from ostools.ground.errors import InputError

    if MANNERS.dry_run:
        raise InputError(
            "--dry-run: expected a command that measures once, found explore, which measures what is typed: leave it out; the "
            "page says how long a run still takes, and stops it"
        )
    second = None
    if against_model is not None:
        with at_work("loading the second model", against_model, device, dtype, counted=False) as (second, _):
            pass
    with at_work("starting the explorer", model, device, dtype, counted=False) as (loaded, _):
        explorer = explore(loaded, prompt, against=second, host=host, port=port)
    try:
        if MANNERS.json:
            output.print_json({"url": explorer.url})
        else:
            output.print_text([explorer.url])
        explorer.wait()
    finally:
        explorer.stop()
