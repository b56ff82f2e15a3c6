"""A command that is ended by a signal, whatever its libraries make of the interrupt."""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from ostools import sweep
from ostools.cli import terminal
from ostools.cli.verbs.sweeps import note
from ostools.ground.signals import ended_by_signals

ENDING = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}


def swallows(number: int) -> None:
    with contextlib.suppress(BaseException):
        signal.raise_signal(number)


def turns(number: int) -> None:
    try:
        signal.raise_signal(number)
    except BaseException as error:
        raise RuntimeError("an error of the library's own") from error


def in_a_callback(number: int) -> None:
    class Dying:
        def __del__(self) -> None:
            signal.raise_signal(number)

    Dying()


@pytest.mark.parametrize(
    ("number", "library"),
    [*zip([*ENDING, signal.SIGINT], [signal.raise_signal, swallows, turns, in_a_callback], strict=True)],
)
def test_the_exit_code_is_the_signals_whatever_a_library_makes_of_it(
    capsys: pytest.CaptureFixture[str], number: signal.Signals, library: Callable[[int], None]
) -> None:
    before = [*map(signal.getsignal, ENDING)], sys.unraisablehook
    came: list[bool] = []

    def work(interrupted: Callable[[], bool]) -> None:
        came.append(interrupted())
        try:
            library(number)
        finally:
            came.append(interrupted())

    with pytest.raises(SystemExit) as ended:
        ended_by_signals(work)
    assert ended.value.code == ENDING[number]
    assert came == [False, True]
    assert capsys.readouterr() == ("", f"ostools: stopped by {number.name}\n")
    assert ([*map(signal.getsignal, ENDING)], sys.unraisablehook) == before


def test_the_command_line_ends_with_the_code_of_the_signal_and_blames_no_plugin(main: Any) -> None:
    app = Mock(side_effect=lambda **_: ended_by_signals(lambda _: signal.raise_signal(signal.SIGTERM)))
    assert main(app) == (143, "ostools: stopped by SIGTERM\n")


def test_a_second_signal_ends_the_process_where_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(BaseException):
        pass

    def leave(code: int) -> None:
        left.append(code)
        raise Gone

    left: list[int] = []
    monkeypatch.setattr(os, "_exit", leave)

    def work(interrupted: Callable[[], bool]) -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(SystemExit):
        ended_by_signals(work)
    assert left == [143]


def test_what_is_ignored_stays_ignored() -> None:
    """As under nohup, or in the background of a script."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        ended_by_signals(lambda interrupted: signal.raise_signal(signal.SIGHUP))
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_sweep_goes_on_where_nobody_reads_its_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "note", Mock(side_effect=BrokenPipeError))
    note("a cell failed")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize(
    ("stdout", "end"), [*{"> /dev/full": (2, "ostools: stdout: No space left on device\n"), ">&-": (0, "")}.items()]
)
def test_a_full_disk_under_stdout_is_one_line_and_a_closed_stdout_no_error(stdout: str, end: tuple[int, str]) -> None:
    code = "import sys; from ostools.cli import main; sys.argv[0] = 'ostools'; main()"
    command = f"{shlex.quote(sys.executable)} -c {shlex.quote(code)} --version {stdout}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == end


def test_a_full_quota_under_stdout_is_one_line(main: Any) -> None:
    reason = os.strerror(errno.EDQUOT)
    assert main(Mock(side_effect=OSError(errno.EDQUOT, reason))) == (2, f"ostools: stdout: {reason}\n")


@pytest.mark.parametrize(("failed", "code"), [((), 0), (("a cell",), 1)])
def test_a_reader_that_left_changes_no_exit_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, failed: tuple[str, ...], code: int
) -> None:
    """A real pipe, of which nobody reads."""
    from ostools import cli

    (tmp_path / "sweep.yaml").write_text("tasks: copy-last\n")
    end, begin = os.pipe()
    os.close(end)
    done = sweep.Outcome(measured=1, present=0, failed=failed)
    monkeypatch.setattr(sweep, "run", lambda *_, **__: done)
    monkeypatch.setattr(sweep, "read_sweep", lambda path: None)
    monkeypatch.setattr(cli, "_quieten_libraries", lambda: None)
    words = ["sweep", "run", str(tmp_path / "sweep.yaml"), "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", ["ostools", *words])
    with open(begin, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        with pytest.raises(SystemExit) as ended:
            cli.main()
    assert ended.value.code == code
