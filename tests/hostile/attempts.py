"""One call of the command line, with what it may not do watched by Python's audit hooks: start a
program, unpickle, connect.
"""

import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

FORBIDDEN = (
    *("os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.system", "pickle.find_class"),
    *("socket.connect", "subprocess.Popen", "webbrowser.open"),
)
_seen: list[list[str]] = []
"""Lists that the events of running blocks are noted in."""


class Attempt(NamedTuple):
    """Exit code and output of a call, and the forbidden events in it."""

    code: int
    out: str
    err: str
    events: list[str]


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    if _seen and event in FORBIDDEN:
        _seen[-1].append(event)
        raise PermissionError(event)


sys.addaudithook(_audit)  # for as long as the process lasts; it looks at nothing outside a block


@contextmanager
def watched() -> Iterator[list[str]]:
    """The forbidden events of the block, each of which is refused."""
    _seen.append(events := [])
    try:
        yield events
    finally:
        _seen.pop()


def attempt(arguments: Sequence[str], below: Path) -> Attempt:
    """`ostools` with these arguments, in this process and in the directory `below`."""
    from ostools import cli

    out, err, code = io.StringIO(), io.StringIO(), 0
    given, home = sys.argv, Path.cwd()
    sys.argv = ["ostools", *arguments]
    os.chdir(below)
    try:
        with watched() as events, redirect_stdout(out), redirect_stderr(err):
            cli.main()
    except SystemExit as stopped:
        code = int(stopped.code or 0)
    finally:
        sys.argv = given
        os.chdir(home)
    return Attempt(code, out.getvalue(), err.getvalue(), events)
