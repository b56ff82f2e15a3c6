"""`ostools attention`: what it refuses, and what it writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.test_cli import assert_refused


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["expected --prompt, or --task with --length"]),
        (["--prompt", "1", "--task", "copy-last"], ["expected --prompt, or --task with --length"]),
        (["--task", "copy-last"], ["--task and --length go together"]),
        (["--prompt", ""], ["expected text, found nothing"]),
        (["--task", "copy-lst", "--length", "3"], ["did you mean 'copy-last'"]),
        (["--prompt", "1", "--mitigation", "hnt"], ["did you mean 'hint'"]),
        (["--prompt", "1", "--against-prompt", ""], ["--against-prompt: expected text"]),
        (
            ["--prompt", "1", "--against-prompt", "2", "--mitigation", "hint"],
            ["--mitigation and --against-prompt exclude each other"],
        ),
        (["--prompt", "1", "--out", "x.doc"], ["expected a name ending in", ".html"]),
    ],
)
@pytest.mark.usefixtures("no_model")
def test_bad_input_is_one_line_before_a_model_is_loaded(
    run, tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    assert_refused(run("attention", *arguments), *words)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_subtracted_is_refused_and_shown_side_by_side(run, tmp_path: Path, directory: str) -> None:
    asked = ("attention", "--model", directory, "--prompt", "123", "--against-prompt", "12")
    assert_refused(run(*asked, "--out", "x.png"), "none known to be the same", "--out x.html")
    assert list(tmp_path.iterdir()) == []
    code, out, _ = run(*asked, "--out", "x.html")
    assert (code, out.split()) == (0, ["wrote", "x.html"])
    assert "Side by side only" in (tmp_path / "x.html").read_text(encoding="utf-8")


def test_the_terminal_shows_the_greatest_weights_or_changes(run, directory: str) -> None:
    asked = ("attention", "--model", directory, "--prompt", "1234")
    code, out, _ = run(*asked)
    assert code == 0
    assert "The greatest weights" in out
    code, out, _ = run(*asked, "--mitigation", "sliding-window:window=2")
    assert code == 0
    assert "mitigation: none against mitigation: sliding-window:window=2" in out
    assert "the median head moves" in out


def test_the_table_and_json_hold_every_row(run, tmp_path: Path, directory: str) -> None:
    asked = ("attention", "--model", directory, "--prompt", "1234", "--against-model", directory)
    assert run(*asked, "--out", "x.parquet")[0] == 0
    table: Any = pd.read_parquet(tmp_path / "x.parquet")
    assert (table["difference"] == 0).all()
    code, out, _ = run(*asked, "--json")
    assert code == 0
    assert len(json.loads(out)["rows"]) == len(table)
