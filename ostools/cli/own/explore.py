"""`ostools explore`: the explorer in the browser."""

from __future__ import annotations

from ostools.cli import output
from ostools.cli.global_options import GLOBALS
from ostools.cli.running import EMBEDDED, at_work
from ostools.ground.errors import InputError


def explore(
    *,
    model: str | None = None,
    prompt: str = "",
    against_model: str | None = None,
    port: int = 0,
    host: str = "127.0.0.1",
) -> None:
    """Look at a prompt in the browser, as you type it.

    A page on this machine: the tokens of the prompt, coloured by attention at once, by a sketch of
    the sensitivity and by the measured norms a little later, with charts, and the code that gives
    the same. Another prompt, a mitigation or a second model may stand beside it. Prints its
    address. Ctrl-C ends it.

    Args:
        prompt: what stands in the field at first.
        against_model: a second model, which the page can hold beside the first.
        port: the port to listen on; 0 takes a free one.
        host: listen there; beyond loopback the address printed holds a token.
    """
    from ostools.explorer import explore

    if GLOBALS.dry_run:
        raise InputError(
            "--dry-run: expected a command that measures once, found explore, which measures what "
            "is typed: leave it out; the page says how long a run still takes, and stops it"
        )
    second = None
    if against_model is not None:
        with at_work("loading the second model", against_model, counted=False) as (second, _):
            pass
    with at_work("starting the explorer", model or EMBEDDED, counted=False) as (loaded, _):
        explorer = explore(loaded, prompt, against=second, host=host, port=port)
    try:
        if GLOBALS.json:
            output.print_json({"url": explorer.url})
        else:
            output.print_text([explorer.url])
        explorer.wait()
    finally:
        explorer.stop()
