"""`ostools study` and `ostools windows`: what they show, and one line for whatever cannot be done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.checkpoints import write_checkpoint
from tests.test_cli import assert_refused


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny Llama on disk."""
    sizes: dict[str, Any] = {"d_model": 16, "n_heads": 2, "n_key_value_heads": 1, "d_mlp": 16, "context": 256}
    return str(write_checkpoint(tmp_path_factory.mktemp("study") / "tiny", "llama", chat_template=None, **sizes))


def test_a_study_is_a_table_of_verdicts_and_effects(run: Any, directory: str) -> None:
    options = [
        "--mitigation",
        "separator:every=2",
        "--lengths",
        "3,4",
        "--sensitivity-lengths",
        "0",
        "--dtype",
        "float32",
    ]
    code, out, err = run("study", "--model", directory, *options)
    assert (code, err) == (0, "")
    for words in ("verdicts", "separator:every=2", "not decided", "share of right answers", "(Bonferroni)", "×"):
        assert words in out
    assert "3 of them hold together at 95%" in " ".join(out.split())


def test_windows_to_a_file(run: Any, directory: str, tmp_path: Path) -> None:
    out = tmp_path / "windows.parquet"
    code, said, _ = run("windows", "--model", directory, "--lengths", "3", "--windows", "2,40", "--out", str(out))
    assert code == 0
    assert "wrote" in said
    table = pd.read_parquet(out)
    assert table["window"].tolist() == [pd.NA, 2, 40]
    code, said, _ = run("windows", "--model", directory, "--lengths", "3", "--windows", "5", "--layers", "1")
    assert code == 0
    assert "none" in said
    assert "front" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["study", "--task", "copy-lost"], ["unknown task 'copy-lost'", "copy-last"]),
        (["study", "--mitigation", "seperator"], ["unknown mitigation 'seperator'", "separator"]),
        (["study", "--mitigation", "separator:evry=3"], ["has no option 'evry'", "every"]),
        (["study", "--mitigation", "sliding-window:window=0"], ["window of at least 1, found 0"]),
        (["study", "--mitigation", "sliding-window:window=4,layers=7"], ["layers out of 0..1, found 7"]),
        (["study", "--lengths", "200"], ["at most 256 tokens"]),
        (["study", "--dtype", "float23"], ["unknown dtype 'float23'"]),
        (["study", "--lengths", "9:4"], ["runs backwards"]),
        (["study", "--out", "study.doc"], ["expected a name ending in"]),
        (["windows", "--windows", "0:4"], ["--windows '0:4'", "from 1"]),
        (["windows", "--layers", "1,x"], ["--layers '1,x'", "alternate"]),
        (["windows", "--layers", "9", "--windows", "4"], ["layers out of 0..1, found 9"]),
        (["windows", "--task", "copy"], ["ends in the sequence"]),
    ],
)
def test_refusals_are_one_line(run: Any, directory: str, arguments: list[str], words: list[str]) -> None:
    command, *rest = arguments
    assert_refused(run(command, "--model", directory, *rest), *words)


def test_a_merged_separator_is_one_line(run: Any, directory: str, tmp_path: Path) -> None:
    """A tokenizer that makes one token of a one and a comma: nothing would be separated."""
    import json
    import shutil

    copy = tmp_path / "merging"
    shutil.copytree(directory, copy)
    file = copy / "tokenizer.json"
    state = json.loads(file.read_text(encoding="utf-8"))
    # In the place of a merge of letters, so that the vocabulary stays as large as the embedding.
    merges, vocab = state["model"]["merges"], state["model"]["vocab"]
    left, right = merges.pop()
    vocab["1,"] = vocab.pop(left + right)
    merges.append(["1", ","])
    split = state["pre_tokenizer"]["pretokenizers"]
    state["pre_tokenizer"]["pretokenizers"] = [
        part | {"use_regex": False} for part in split if part["type"] != "Digits"
    ]
    file.write_text(json.dumps(state), encoding="utf-8")
    found = run("study", "--model", str(copy), "--mitigation", "separator:every=3", "--lengths", "4")
    assert_refused(found, "expected inserted text in tokens of its own, found '1,'")
