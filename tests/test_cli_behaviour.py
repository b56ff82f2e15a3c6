"""`ostools behaviour`: what it refuses, and what it writes."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from tests.test_cli import assert_refused

SHORT = ("behaviour", "--task", "count-ones-figure-5", "--lengths", "1:2", "--no-chat")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--task", "count-wrd"], ["unknown task 'count-wrd'", "did you mean 'count-word'"]),
        (["--task", "count-ones:mod=none"], ["no option 'mod'", "did you mean 'mode'"]),
        (["--mode", "cot"], ["expected mode to be 'none' or 'cot-zero-shot'", "found 'cot'"]),
        (["--task", "copy", "--mode", "cot-few-shot"], ["task 'copy' has no option 'mode'"]),
        (["--mitigation", "sepparator"], ["unknown mitigation 'sepparator'", "did you mean 'separator'"]),
        (["--mitigation", "separator:every=0"], ["expected every of at least 1, found 0"]),
        (["--lengths", "9:3"], ["runs backwards"]),
        (["--seed", "one"], ["--seed"]),
        (["--out", "x.doc"], ["expected a name ending in", ".html"]),
        (["--out", "no/x.png"], ["does not exist"]),
    ],
)
@pytest.mark.usefixtures("no_model")
def test_bad_input_is_one_line_before_a_model_is_loaded(
    run, tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    assert_refused(run("behaviour", *arguments), *words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--lengths", "300"], ["expected at most 256 tokens (the model's context)"]),
        (["--lengths", "208"], ["do not fit the model's context of 256"]),
        (["--lengths", "2", "--samples", "3"], ["at temperature 0 all 3 would be the same"]),
        (["--lengths", "2", "--seed", "0", "--seed", "1"], ["draws nothing at random"]),
        (
            ["--lengths", "2", "--max-new-tokens", "0"],
            ["max_new_tokens: expected a whole number of at least 1, found 0"],
        ),
        (["--lengths", "2", "--temperature", "-1"], ["temperature of 0 (greedy) or more, found -1.0"]),
    ],
)
def test_what_cannot_be_asked_is_refused(
    run,
    tmp_path: Path,
    directory: str,
    arguments: list[str],
    words: list[str],
) -> None:
    task = ["--task", "count-ones-figure-5", "--no-chat", "--out", "x.csv"]
    assert_refused(run("behaviour", "--model", directory, *task, *arguments), *words)
    assert list(tmp_path.iterdir()) == []


def test_a_table_and_sentences_on_the_terminal(run, directory: str) -> None:
    code, out, err = run(*SHORT, "--model", directory)
    assert (code, err) == (0, "")
    assert "Answers to count-ones-figure-5" in out
    assert "All lengths: 0 of 2 answers are right." in out
    assert "Nothing was drawn: there is no interval." in out
    assert "95%" not in out
    assert "acted" not in out
    assert out.replace("\n", "").isprintable()


def test_a_file_holds_every_answer_and_json_all_of_it(run, tmp_path: Path, directory: str) -> None:
    drawn = ("--temperature", "1", "--samples", "2", "--mitigation", "separator:every=1")
    code, out, _ = run(*SHORT, *drawn, "--model", directory, "--out", "answers.csv")
    assert (code, out) == (0, "wrote answers.csv\n")
    found = pd.read_csv(tmp_path / "answers.csv")
    assert found["length"].tolist() == [1, 1, 2, 2]
    assert found["sample"].tolist() == [0, 1, 0, 1]
    assert found["status"].tolist() == ["inactive", "inactive", "active", "active"]
    code, out, _ = run(*SHORT, "--json", "--model", directory)
    assert code == 0
    assert json.loads(out)["provenance"]["parameters"]["measurement"] == "behaviour"
