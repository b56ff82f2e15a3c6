"""A command whose streams are closed, full, or read by nobody."""

from __future__ import annotations

import errno
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from ostools import sweep
from ostools.cli import terminal
from ostools.cli.verbs.sweeps import note


def test_a_sweep_goes_on_where_nobody_reads_its_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "note", Mock(side_effect=BrokenPipeError))
    note("a cell failed")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize(
    ("stdout", "end"),
    [*{"> /dev/full": (2, "ostools: stdout: No space left on device\n"), ">&-": (0, "")}.items()],
)
def test_a_full_disk_under_stdout_is_one_line_and_a_closed_stdout_no_error(
    stdout: str, end: tuple[int, str]
) -> None:
    code = "import sys; from ostools.cli import main; sys.argv[0] = 'ostools'; main()"
    command = f"{shlex.quote(sys.executable)} -c {shlex.quote(code)} --version {stdout}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == end


def test_a_full_quota_under_stdout_is_one_line(main: Any) -> None:
    reason = os.strerror(errno.EDQUOT)
    assert main(Mock(side_effect=OSError(errno.EDQUOT, reason))) == (
        2,
        f"ostools: stdout: {reason}\n",
    )


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
