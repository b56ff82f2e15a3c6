"""Streams and texts that are not UTF-8: every command prints what it can, and a text is refused by
its own name.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.asking import assert_refused, in_a_process

ENVIRONMENTS: dict[str, dict[str, str]] = {
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "strict": {"PYTHONIOENCODING": "ascii:strict"},
    "C": {"LC_ALL": "C"},
}


def _asked(environment: str, *arguments: str) -> Any:
    done = in_a_process(
        *arguments, env=os.environ | ENVIRONMENTS[environment], encoding="utf-8", errors="replace"
    )
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr[-400:]
    return done


@pytest.mark.parametrize(
    ("environment", "dots"), [("ascii", "\\u2026"), ("strict", "\\u2026"), ("C", "\u2026")]
)
def test_what_a_stream_cannot_write_is_written_as_its_escape(environment: str, dots: str) -> None:
    assert dots in _asked(environment, "list", "tasks").stdout


@pytest.mark.slow
@pytest.mark.parametrize("environment", ["strict", "C"])
def test_results_and_json_reach_such_a_stream(environment: str) -> None:
    asked = ("attention", "--prompt", "caf\u00e9 \u65e5")
    assert "weight" in _asked(environment, *asked).stdout
    result = json.loads(_asked(environment, *asked, "--json").stdout)
    assert "".join(row["token"] for row in result["rows"] if row["layer"] == 0 and row["head"] == 0)


BYTES = b"caf\xe9"


@pytest.mark.parametrize(
    "arguments",
    [
        ("sensitivity", "--prompt", BYTES),
        ("sensitivity", "--prompt", "a", "--chat", "--system", BYTES),
        ("sensitivity", "--prompt", "a", "--logit", BYTES),
        ("sensitivity", "--prompt", "a", "--mitigation", b"separator:text=" + BYTES),
        ("collapse", "--prompt", "a", "--item", BYTES),
        ("evaluate", "--task", b"retrieve:records=" + BYTES),
        ("attention", "difference", "--prompt", "a", "--against-prompt", BYTES),
    ],
)
def test_bytes_that_are_no_text_are_refused_by_the_name_of_the_option(
    run: Any, arguments: tuple[Any, ...]
) -> None:
    words = [os.fsdecode(word) for word in arguments]
    assert_refused(
        run(*words),
        f"{words[-2]}: expected text in UTF-8, found the byte 0xE9 at {len(words[-1]) - 1}",
    )


def test_half_of_a_character_in_a_file_is_refused_by_its_line(run: Any, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b\\ud800"}\n')
    refused = run("sensitivity", "--prompts", str(tmp_path / "a.jsonl"))
    assert_refused(refused, "a.jsonl, line 2: expected text in UTF-8, found U+D800 at 1")


def test_a_command_line_in_bytes_is_one_line() -> None:
    code = "import sys; from ostools.cli import main; sys.argv[0] = 'ostools'; main()"
    command = [sys.executable.encode(), b"-c", code.encode(), b"sensitivity", b"--prompt", BYTES]
    done = subprocess.run(
        command, capture_output=True, env=os.environ | ENVIRONMENTS["ascii"], check=False
    )
    assert_refused(
        (done.returncode, done.stdout.decode(), done.stderr.decode()),
        "--prompt: expected text in UTF-8",
    )
