"""How a command that keeps what it has done ends by a signal: at once, without a traceback, with the exit code of a shell."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class EndedBySignal(SystemExit):
    """The user or the system ended the program by a signal. Its code is a shell's: 128 and the signal's number."""


def ended_by_signals(work: Callable[[Callable[[], bool]], None]) -> None:
    """Call `work`, giving it a function that says whether a signal came. The first one raises KeyboardInterrupt in it, a second
    one ends the process where it stands.

    Whatever libraries make of the interrupt (they may swallow it, or turn it into an error of their own), this then ends with
    one line and `EndedBySignal`: code 130 for SIGINT, 143 for SIGTERM, 129 for SIGHUP. One that is ignored, as under nohup,
    stays so.
    """
    came: list[int] = []

    def stop(number: int, frame: object) -> NoReturn:
        if came:
            if sys.stderr.isatty():
                sys.stderr.write("\x1b[?25h")  # a progress bar hides the cursor
            os._exit(128 + came[0])
        came.append(number)
        # Raised inside a callback of C, the interrupt would be printed as unraisable; `work` ends by it all the same.
        sys.unraisablehook = lambda _: None
        raise KeyboardInterrupt

    handlers = {number: signal.getsignal(number) for number in _ENDING}
    before = {number: handler for number, handler in handlers.items() if handler not in (signal.SIG_IGN, None)}
    unraisable = sys.unraisablehook
    # A function and no context manager: there is no moment at which a signal finds the handler set and nobody to catch it.
    try:
        try:
            for number in before:
                signal.signal(number, stop)
            work(lambda: bool(came))
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            sys.unraisablehook = unraisable
    except BaseException:
        if not came:
            raise
    if came:
        sys.stderr.write(f"ostools: stopped by {signal.Signals(came[0]).name}\n")
        raise EndedBySignal(128 + came[0])
