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
    """A local page that shows, as you type a prompt, what is predicted, measured and bounded for each token.

        ost.explore(model)             # in a notebook: the page in the cell
        ost.explore(model, "1 0 1 1").url

    Args:
        prompt: what stands in the field at first. A link that holds a state has a prompt of its own.
        against: a second model, which the page can show beside the first.
        host: the address to listen on. Beyond loopback the page's address holds a token, and a request without it is refused.
            The connection is not encrypted.
        port: 0 takes a free one.

    The server runs in a thread of this process until `.stop()`. Every number comes from the public functions of ostools.
    Raises `InputError` if starlette and uvicorn are missing (`pip install 'oversquashing-tools[explore]'`), and for an address
    on which it cannot listen. Cost: that of what the page asks for.
    """
    from ostools.explorer import explore
    from ostools.ground.errors import InputError

    if MANNERS.dry_run:
        raise InputError(
            "--dry-run: expected a command that measures once, found explore, which measures what is typed: leave it out; the "
            "page asks before whatever is forecast to take long"
        )
    second = None
    if against_model is not None:
        with at_work("loading the second model", against_model, device, dtype) as (second, _):
            pass
    with at_work("starting the explorer", model, device, dtype) as (loaded, _):
        explorer = explore(loaded, prompt, against=second, host=host, port=port)
    try:
        if MANNERS.json:
            output.print_json({"url": explorer.url})
        else:
            output.print_text([explorer.url])
        explorer.wait()
    finally:
        explorer.stop()
