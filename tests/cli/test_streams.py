"""A command whose output is read by nobody, or goes to a full disk."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize(
    ("end", "code", "line"),
    [("> /dev/full", 2, "No space left on device"), ("| head -c 1 > /dev/null", 0, "")],
)
def test_a_full_disk_under_stdout_is_one_line_and_a_reader_that_left_no_error(
    end: str, code: int, line: str
) -> None:
    program = "import sys; from ostools.cli import main; sys.argv[0] = 'ostools'; main()"
    command = f"{shlex.quote(sys.executable)} -c {shlex.quote(program)} list measurements {end}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.returncode == code
    assert line in done.stderr
    assert "Traceback" not in done.stderr
