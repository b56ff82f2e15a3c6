"""Many prompts in one command: which file is one of prompts, what is refused by its line, and one
table for all.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import ostools as ost
from ostools.cli.prompts import parse_ids, prompts_of
from ostools.ground.errors import InputError
from ostools.tasks.questions import prompts_jsonl, questions
from tests.cli.asking import assert_refused


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.txt", b"one\n\ntwo\n", "line 2: expected a prompt, found an empty line"),
        ("a.txt", b"\xff\xfe", "cannot be read: UnicodeDecodeError"),
        ("a.jsonl", b'{"prompt": "a"}\nb\n', "line 2: expected a JSON object with a text"),
        ("a.jsonl", b'["a"]\n', "line 1: expected a JSON object with a text"),
        ("none.txt", b"a\n", "No such file"),
        (".", b"a\n", "cannot be read"),
    ],
)
def test_what_is_no_file_of_prompts_is_refused_by_its_line(
    run, tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    (tmp_path / (name if name.startswith("a.") else "a.txt")).write_bytes(content)
    assert_refused(run("sensitivity", "--prompts", str(tmp_path / name)), words)
    assert_refused(
        run("sensitivity", "--prompts", str(tmp_path / name), "--prompt", "a"), "exclude each other"
    )


def test_files_of_prompts_are_read_as_they_are_written(tmp_path: Path) -> None:
    asked = questions("copy-last", lengths=[2, 3])
    (tmp_path / "a.jsonl").write_text(prompts_jsonl(asked))
    assert prompts_of(tmp_path / "a.jsonl") == [question.text for question in asked]
    (tmp_path / "a.txt").write_bytes("one \r\n two\u2028".encode())
    assert prompts_of(tmp_path / "a.txt") == ["one ", " two\u2028"]


def test_the_prompt_that_does_not_fit_is_named_and_nothing_is_written(
    run, directory: str, tmp_path: Path
) -> None:
    out = tmp_path / "x.csv"
    asked = (
        "sensitivity",
        "--prompt",
        "a",
        "--prompt",
        "1" * 4000,
        "--model",
        directory,
        "--out",
        str(out),
    )
    assert_refused(run(*asked), "prompt 2 of 2 (")
    assert not list(tmp_path.iterdir())


def test_ids_are_read_from_the_line() -> None:
    assert parse_ids("2 40 50") == parse_ids("[2, 40, 50]\n") == parse_ids("2,40,50") == (2, 40, 50)
    for text in ("", "2,-1", "1.5", "٣", "\0"):
        with pytest.raises(InputError, match=r"--ids .*: expected token ids such as 2,40,50"):
            parse_ids(text)


def test_ids_in_place_of_a_prompt(run, directory: str, tmp_path: Path) -> None:
    """The command's numbers are those of the text."""
    ids = ost.encode(ost.load_model(directory, device="cpu"), "The 11").ids.tolist()
    (tmp_path / "a.jsonl").write_text(
        json.dumps({"prompt": "The 11"}) + "\n" + json.dumps({"ids": ids}) + "\n"
    )
    out = tmp_path / "x.json"
    code, _, _ = run(
        "sensitivity",
        "--prompts",
        str(tmp_path / "a.jsonl"),
        "--model",
        directory,
        "--out",
        str(out),
    )
    assert code == 0
    table: Any = pd.DataFrame(json.loads(out.read_text())["rows"])
    one, two = (
        rows.drop(columns=["prompt", "origin"]).reset_index(drop=True)
        for _, rows in table.groupby("prompt")
    )
    pd.testing.assert_frame_equal(one, two)
    text, numbers = (
        run("bounds", *given, "--model", directory, "--variants", "local", "--json")[1]
        for given in (("--prompt", "The 11"), ("--ids", ",".join(map(str, ids))))
    )
    values = [[row["value"] for row in json.loads(found)["rows"]] for found in (text, numbers)]
    assert values[0] == values[1]
