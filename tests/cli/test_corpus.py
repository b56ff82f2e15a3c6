"""`ostools sweep corpus`: refused before a model is loaded where it can be, resumed by the same command, as from Python."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ostools.runs import read_corpus
from tests.cli.asking import NOTES, assert_refused

TEXTS = ["the quick brown fox jumps over", "a lazy dog while it rains", "and nobody minds at all", "so"]
ASKED = ("sweep", "corpus", "--texts", "texts.jsonl", "--lengths", "8,12", "--bins", "4", "--measure", "attention")


@pytest.fixture(autouse=True)
def _texts(tmp_path: Path) -> None:
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("sweep", "corpus", "--texts", "none.jsonl"), ("none.jsonl: expected a file of texts", "found no such file")),
        ((*ASKED, "--field", "txt"), ("texts.jsonl, line 1: unknown field 'txt': did you mean 'text'",)),
        ((*ASKED, "--measure", "atention"), ("unknown measure 'atention': did you mean 'attention'",)),
        ((*ASKED, "--measure", "collapse"), ("bins: expected it with a measure of profiles",)),
        ((*ASKED, "--dtype", "bfloat16"), ("--dtype: expected it with --measure collapse alone; --load-dtype loads",)),
        ((*ASKED[:6], "--measure", "collapse", "--dtype", "float61"), ("unknown dtype 'float61'",)),
        ((*ASKED, "--method", "exact"), ("method: expected it with measure 'sensitivity' alone",)),
        ((*ASKED, "--mitigation", "hint"), ("expected a mitigation of the forward pass, found hint, which rewrites",)),
        ((*ASKED, "--bins", "9"), ("bins: expected at most 8",)),
        ((*ASKED, "--lengths", "9:3"), ("runs backwards",)),
        ((*ASKED, "--cells", "."), ("expected a new directory or that of a sweep",)),
        ((*ASKED, "--out", "x.doc"), ("expected a name ending in",)),
    ],
    ids=lambda value: " ".join(value),
)
def test_what_cannot_be_done_is_one_line(
    run, directory: str, tmp_path: Path, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    assert_refused(run(*arguments, "--model", directory, "--quiet"), *words)
    assert [path.name for path in tmp_path.iterdir() if not path.is_dir()] == ["texts.jsonl"]


def test_texts_that_are_too_short_are_one_line(run, directory: str, tmp_path: Path) -> None:
    found = run(*ASKED, "--lengths", "200", "--model", directory, "--cells", "kept", "--quiet")
    assert_refused(found, "expected a text of at least 199 tokens", "found 4 texts of at most")
    assert not (tmp_path / "kept").exists()


def test_the_same_command_resumes_and_python_reads_what_it_kept(run, directory: str, tmp_path: Path) -> None:
    asked = (*ASKED, "--model", directory, "--count", "3", "--cells", "kept", "--out", "x.parquet")
    code, out, err = run(*asked)
    assert (code, out) == (0, "wrote x.parquet\n")
    assert "too short and passed over" in err or err.count("\n") == 1
    first = pd.read_parquet(tmp_path / "x.parquet")
    files = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "kept" / "cells").iterdir()}
    assert run(*asked)[0] == 0
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "kept" / "cells").iterdir()} == files
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "x.parquet"), first, check_exact=True)
    found: Any = read_corpus("kept", bins=4)
    pd.testing.assert_frame_equal(found.frame, first, check_exact=True, check_like=False)
    assert found.summary["texts"].tolist() == [3, 3]


def test_under_a_mitigation_another_profile_is_measured_and_named(run, directory: str, tmp_path: Path) -> None:
    asked = (*ASKED, "--lengths", "8", "--model", directory, "--quiet", "--out")
    assert run(*asked, "plain.parquet")[0] == 0
    assert run(*asked, "under.parquet", "--mitigation", "sliding-window:window=4")[0] == 0
    plain, under = (pd.read_parquet(tmp_path / f"{name}.parquet") for name in ("plain", "under"))
    assert under.attrs["ostools"]["parameters"]["mitigation"] == "sliding-window:window=4"
    assert plain["mean"].iloc[0] > under["mean"].iloc[0] == 0


def test_it_shows_what_it_found(run, directory: str) -> None:
    code, out, err = run(*ASKED, "--lengths", "8", "--count", "2", "--model", directory)
    assert code == 0
    assert out.startswith("Windows of text")
    assert "not tested: 7 tokens, 15 needed" in out
    assert err.splitlines()[-1].startswith(NOTES)


def test_it_shows_what_each_dtype_hides(run, directory: str, tmp_path: Path) -> None:
    asked = (
        "sweep",
        "corpus",
        "--texts",
        "texts.jsonl",
        "--lengths",
        "6,8",
        "--measure",
        "collapse",
        "--dtype",
        "bfloat16",
        "--model",
        directory,
    )
    code, out, err = run(*asked, "--count", "2", "--out", "x.csv", "--cells", "kept")
    assert (code, out) == (0, "wrote x.csv\n")
    assert err.splitlines()[-1].startswith(NOTES)
    table = pd.read_csv(tmp_path / "x.csv")
    assert table[["length", "dtype", "windows"]].values.tolist() == [[6, "bfloat16", 2], [8, "bfloat16", 2]]
    code, out, _ = run(*asked, "--count", "2", "--cells", "kept")
    assert code == 0
    assert out.startswith("Windows, and with their last token once more")
