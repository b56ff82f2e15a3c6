"""`ostools counting`: what it refuses, and what it writes."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from tests.test_cli import assert_refused

SHORT = ("counting", "--task", "count-ones-figure-5", "--lengths", "1:2", "--dtype", "float32")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--task", "count-wrd"], ["unknown task 'count-wrd'", "did you mean 'count-word'"]),
        (["--task", "copy-last"], ["unknown counting task 'copy-last'", "count-ones"]),
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
    assert_refused(run("counting", *arguments), *words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--lengths", "1:2", "--dtype", "float8"], ["unknown dtype 'float8'"]),
        (["--lengths", "46", "--out", "x.csv"], ["46 items and one more take", "holds 256"]),
    ],
)
def test_what_the_model_cannot_do_is_refused(
    run,
    tmp_path: Path,
    directory: str,
    arguments: list[str],
    words: list[str],
) -> None:
    assert_refused(run("counting", "--model", directory, *arguments), *words)
    assert list(tmp_path.iterdir()) == []


def test_a_table_and_sentences_on_the_terminal(run, directory: str) -> None:
    code, out, err = run(*SHORT, "--model", directory)
    assert (code, err) == (0, "")
    assert "Answers to count-ones-figure-5" in out
    assert "float32: no impossible count is predicted, not reached by 2." in out
    assert "one-sided" in out
    assert out.replace("\n", "").isprintable()


def test_a_file_holds_every_count(run, tmp_path: Path, directory: str) -> None:
    code, out, _ = run(*SHORT, "--model", directory, "--out", "counts.csv")
    assert (code, out) == (0, "wrote counts.csv\n")
    assert pd.read_csv(tmp_path / "counts.csv")["length"].tolist() == [1, 2]
