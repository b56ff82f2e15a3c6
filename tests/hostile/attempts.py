"""One call of the command line with hostile input, and the law that it must keep.

The law: an exit code and no traceback; a refusal in one line that drives no terminal; an answer
within seconds; no program started, nothing unpickled, no connection made, and no file written but
below the directory that the call was made in.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SECONDS = 60
"""Seconds that a call may take: a hundred times what it takes, so that a slow machine is no hang.
"""

_FORBIDDEN = (
    "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.startfile", "os.system", "pty.spawn",
    "pickle.find_class", "shutil.rmtree", "socket.connect", "socket.getaddrinfo", "subprocess.Popen", "urllib.Request",
    "webbrowser.open",
)  # fmt: skip
_MOVES = {"os.rename": (0, 1), "os.link": (1,)}
_MOVES |= dict.fromkeys(("os.remove", "os.rmdir", "os.mkdir", "os.truncate"), (0,))
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class LawBroken(BaseException):
    """Raised within the call, and by nobody caught: libraries swallow every Exception."""


class Reached(BaseException):
    """The call came as far as the work itself, which is not what is tested."""


@dataclass(frozen=True)
class Attempt:
    """Exit code and output of a call; `reached`: it was stopped where the work begins."""

    arguments: tuple[str, ...]
    code: int
    out: str
    err: str
    reached: bool = False


@dataclass
class _Watch:
    """The directory that may be written to while a call runs; None: no call runs."""

    below: str | None = None
    broken: str | None = None


_watch = _Watch()
_hooked: list[bool] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _watch.below is None:
        return
    if event in _FORBIDDEN:
        _break(f"{event}{arguments[:2]!r:.200}")
    elif event == "open":
        path, mode, flags = arguments
        if (mode and set(str(mode)) & set("wax+")) or (isinstance(flags, int) and flags & _WRITES):
            _written(event, path)
    elif event in _MOVES:
        for place in _MOVES[event]:
            _written(event, arguments[place])


def _written(event: str, path: Any) -> None:
    if (
        isinstance(path, int)
        or os.fsdecode(path) == os.devnull
        or os.fsdecode(path).endswith((".pyc", "__pycache__"))
    ):
        return
    where = os.path.realpath(os.fsdecode(path))
    if not f"{where}{os.sep}".startswith(f"{_watch.below}{os.sep}") and "__pycache__" not in where:
        _break(f"{event} of {where}")


def _break(what: str) -> None:
    _watch.broken = _watch.broken or what
    raise LawBroken(what)


@contextmanager
def watched(below: Path, within: int = SECONDS) -> Iterator[None]:
    """No code run, no connection, no file touched outside `below`, while the block runs; and it
    ends in time.
    """
    if not _hooked:
        sys.addaudithook(_audit)
        _hooked.append(True)

    def late(number: int, frame: object) -> None:
        _break(f"no answer within {within} seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(within)
    _watch.below, _watch.broken = os.path.realpath(below), None
    try:
        yield
    finally:
        _watch.below = None
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    if _watch.broken is not None:  # and then swallowed by somebody
        raise LawBroken(_watch.broken)


def attempt(arguments: Sequence[str], below: Path, within: int = SECONDS) -> Attempt:
    """`ostools` with these arguments, in this process and in the directory `below`, held to the
    law.
    """
    from ostools import cli
    from ostools.cli.global_options import GLOBALS

    out, err = _stream("strict"), _stream("backslashreplace")
    given, home, reached, code = sys.argv, Path.cwd(), False, 0
    sys.argv = ["ostools", *arguments]
    os.chdir(below)
    try:
        with watched(below, within), redirect_stdout(out), redirect_stderr(err):
            cli.main()
    except SystemExit as stopped:
        code = stopped.code
    except Reached:
        reached = True
    finally:
        sys.argv = given
        os.chdir(home)
        GLOBALS.quiet = GLOBALS.json = False
    found = Attempt(tuple(arguments), int(code or 0), _said(out), _said(err), reached)
    assert_lawful(found)
    return found


def assert_lawful(found: Attempt) -> None:
    """An answer, or one line that says what is refused; and no character that drives a terminal."""
    for text in (found.out, found.err):
        control = [
            character for character in text if not character.isprintable() and character != "\n"
        ]
        assert not control, f"control characters {control[:5]!r} in {text[:300]!r}"
        assert "Traceback" not in text, text
    if found.reached:
        return
    assert found.code in (0, 1, 2), found
    refusals = [line for line in found.err.splitlines() if line.startswith("ostools: ")]
    if found.code == 2:
        assert len(refusals) == 1, found
        assert found.err.endswith(f"{refusals[0]}\n"), found
        assert found.out == "", found
        assert len(refusals[0]) > len("ostools: ") + 10, found
    else:
        assert not refusals, found


def _stream(errors: str) -> io.TextIOWrapper:
    """As Python opens a program's own: stdout refuses what UTF-8 cannot write, stderr writes it as
    an escape.
    """
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors=errors, write_through=True)


def _said(stream: io.TextIOWrapper) -> str:
    return stream.buffer.getvalue().decode("utf-8")  # pyright: ignore[reportAttributeAccessIssue]
