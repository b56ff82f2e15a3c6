"""`ostools sweep corpus`: refused in one line, resumed by the same command, as from Python."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ostools.sweep import read_corpus
from tests.cli.asking import NOTES, assert_refused

TEXTS = ["the quick brown fox jumps over", "a lazy dog while it rains", "and nobody minds at all", "so"]
COMMAND = ("sweep", "corpus", "--texts", "texts.jsonl", "--lengths", "8,12")


@pytest.fixture(autouse=True)
def _texts(tmp_path: Path) -> None:
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*COMMAND, "--texts", "none.jsonl"), ("none.jsonl: expected a file of texts", "found no such file")),
        ((*COMMAND, "--measure", "colapse"), ("unknown measure 'colapse': did you mean 'collapse'",)),
        (
            (*COMMAND, "--mitigation", "hint"),
            ("expected a mitigation of the forward pass, found hint, which rewrites",),
        ),
        ((*COMMAND, "--cells", "."), ("expected a new directory or that of a sweep",)),
    ],
    ids=lambda value: " ".join(value),
)
def test_what_cannot_be_done_is_one_line(
    run, directory: str, tmp_path: Path, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    assert_refused(run(*arguments, "--model", directory, "--quiet"), *words)
    assert [path.name for path in tmp_path.iterdir() if not path.is_dir()] == ["texts.jsonl"]


def test_the_same_command_resumes_and_python_reads_what_it_kept(run, directory: str, tmp_path: Path) -> None:
    asked = (*COMMAND, "--model", directory, "--count", "3", "--cells", "kept", "--out", "x.parquet")
    code, out, _ = run(*asked)
    assert code == 0
    assert out.startswith("wrote x.parquet\n8 tokens, without the sink: not tested: 7 tokens, 15 needed")
    first = pd.read_parquet(tmp_path / "x.parquet")
    files = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "kept" / "cells").iterdir()}
    assert run(*asked)[0] == 0
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "kept" / "cells").iterdir()} == files
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "x.parquet"), first, check_exact=True)
    found: Any = read_corpus("kept")
    pd.testing.assert_frame_equal(found.frame, first, check_exact=True, check_like=False)
    assert found.summary["texts"].tolist() == [3, 3]


def test_under_a_mitigation_another_profile_is_measured_and_named(run, directory: str, tmp_path: Path) -> None:
    asked = (*COMMAND, "--lengths", "8", "--model", directory, "--quiet", "--out")
    assert run(*asked, "plain.parquet")[0] == 0
    assert run(*asked, "under.parquet", "--mitigation", "sliding-window:window=4")[0] == 0
    plain, under = (pd.read_parquet(tmp_path / f"{name}.parquet") for name in ("plain", "under"))
    assert under.attrs["ostools"]["parameters"]["mitigation"] == "sliding-window:window=4"
    assert plain["mean"].iloc[0] > under["mean"].iloc[0] == 0


def test_it_shows_the_shape_of_profiles_and_what_each_dtype_hides(run, directory: str, tmp_path: Path) -> None:
    code, out, err = run(*COMMAND, "--lengths", "8", "--count", "2", "--model", directory)
    assert code == 0
    assert out.startswith("Corpus, summary")
    assert "not tested: 7 tokens, 15 needed" in out
    assert err.splitlines()[-1].startswith(NOTES)
    pairs = "sweep corpus --texts texts.jsonl --lengths 6,8 --measure collapse --dtype bfloat16"
    again = (*pairs.split(), "--model", directory, "--count", "2", "--cells", "kept")
    code, out, _ = run(*again, "--out", "x.csv")
    assert code == 0
    assert out.startswith("wrote x.csv\nbfloat16, 6 tokens: the pair is hidden in 0% [0%, 66%] of 2 texts")
    table = pd.read_csv(tmp_path / "x.csv")
    rows = table[["length", "dtype", "texts"]].values.tolist()
    assert rows == [[6, "bfloat16", 2], [8, "bfloat16", 2]]
    assert run(*again)[1].startswith("Corpus collapse")
