"""How the commands speak: JSON for programs, quiet for scripts, no colour where none is wanted, and what doctor finds."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest


def test_json_is_the_whole_result_and_nothing_else(run, directory: str) -> None:
    code, out, err = run("sensitivity", "--prompt", "The 11", "--model", directory, "--json")
    found = json.loads(out)
    assert code == 0
    assert err.startswith("forecast: ")
    assert found["provenance"]["model"]["architecture"] == "GemmaForCausalLM"
    assert len(found["rows"]) == 2 * len(found["provenance"]["token_ids"])


def test_json_beside_a_file_is_the_same(run, directory: str, tmp_path: Path) -> None:
    code, out, _ = run(
        *("sensitivity", "--prompt", "The 11", "--model", directory, "--json", "--quiet", "--out", "x.json")
    )
    assert code == 0
    assert json.loads(out)["rows"] == json.loads((tmp_path / "x.json").read_text())["rows"]


def test_quiet_says_nothing_but_results_and_refusals(run, directory: str, tmp_path: Path) -> None:
    asked = ("sensitivity", "--prompt", "The 11", "--model", directory, "--quiet")
    code, out, err = run(*asked)
    assert (code, err) == (0, "")
    assert "full operator" in out
    assert run(*asked, "--out", "x.csv") == (0, "", "")
    assert (tmp_path / "x.csv").is_file()
    code, out, err = run("collapse", "--lengths", "9:3", "--quiet", "--json")
    assert (code, out) == (2, "")
    assert err.startswith("ostools: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "keys"),
    [
        ("models", {"embedded", "packaged", "families", "refused"}),
        ("tasks", {"name", "from", "options", "what"}),
        ("mitigations", {"name", "from", "options", "what"}),
        ("doctor", {"what", "state", "found"}),
    ],
)
def test_listings_as_json(run, command: str, keys: set[str]) -> None:
    code, out, err = run(command, "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert set(found if isinstance(found, dict) else found[0]) == keys


@pytest.mark.slow
@pytest.mark.parametrize("no_colour", [False, True])
def test_no_color_is_honoured_on_a_terminal(directory: str, no_colour: bool) -> None:
    ours, theirs = pty.openpty()
    variables = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TERM")}
    variables |= {"TERM": "xterm-256color"} | ({"NO_COLOR": "1"} if no_colour else {})
    arguments = ["ostools", "collapse", "--lengths", "1:2", "--dtype", "float32", "--model", directory]
    code = f"import sys; from ostools.cli import main; sys.argv = {arguments}; main()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=theirs, stderr=theirs, env=variables) as process:
        os.close(theirs)
        shown = b""
        while chunk := _read(ours):
            shown += chunk
    os.close(ours)
    assert process.returncode == 0
    assert b"Figure 5" in shown or b"figure-5a" in shown
    # Bold headings are no colour. The progress bar has some, where they are wanted.
    coloured = re.search(rb"\x1b\[[\d;]*\b(3[0-8]|9[0-7])[;m]", shown) is not None
    assert coloured == (not no_colour)


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except OSError:  # the terminal's other end is closed
        return b""


def test_doctor_finds_what_is_missing(run, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "einops":
            raise metadata.PackageNotFoundError(name)
        return "1.0" if name == "torch" else real(name)

    real = metadata.version
    assert run("doctor")[0] == 0
    monkeypatch.setattr(metadata, "version", version)
    code, out, _ = run("doctor", "--json")
    found = {row["what"]: row for row in json.loads(out)}
    assert code == 1
    assert found["einops"]["state"] == found["torch"]["state"] == "MISSING"
    assert "1.0; expected" in found["torch"]["found"]
    assert "not looked at" in found["the rest"]["found"]
    assert found["altair"]["state"] == "ok"


def test_doctor_answers_where_torch_itself_is_missing(run, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "torch":
            raise metadata.PackageNotFoundError(name)
        return real(name)

    real = metadata.version
    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setitem(sys.modules, "torch", None)
    code, out, err = run("doctor")
    assert (code, err) == (1, "")
    assert "MISSING" in out


def test_doctor_never_shows_a_token(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    _, out, err = run("doctor")
    assert "hf_secret" not in out + err
    assert "set" in out
