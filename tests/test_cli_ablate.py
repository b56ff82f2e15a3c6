"""`ostools ablate`: what it refuses, and what it writes."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest

from tests.test_cli import assert_refused

SHORT = ("ablate", "--task", "copy-first", "--length", "2", "--measure", "answers")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--task", "copy-frist"], ["unknown task 'copy-frist'", "did you mean 'copy-first'"]),
        (["--what", "head"], ["unknown part to ablate 'head'", "did you mean 'heads'"]),
        (["--what", "layers", "--method", "mean"], ["unknown method for layers 'mean'"]),
        (["--measure", "answer"], ["unknown measure 'answer'", "did you mean 'answers'"]),
        (["--target", "2"], ["--target '2'", "layer.head, such as 2.0"]),
        (["--what", "edges", "--target", "2.0"], ["layer.head:query:key"]),
        (["--what", "layers", "--target", "2"], ["layer.attention or layer.mlp"]),
        (["--out", "x.doc"], ["expected a name ending in", ".html"]),
    ],
)
@pytest.mark.usefixtures("no_model")
def test_bad_input_is_one_line_before_a_model_is_loaded(
    run, tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    assert_refused(run("ablate", *arguments), *words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--target", "7.0"], ["layers out of 0..", "found 7"]),
        (["--target", "0.9"], ["heads out of 0..", "found 9"]),
        (["--what", "edges", "--target", "0.0:900:1"], ["found the query 900"]),
        (["--what", "layers", "--target", "0.atention"], ["unknown part of a layer", "did you mean 'attention'"]),
        (["--length", "9000", "--out", "x.csv"], ["tokens (the model's context)"]),
    ],
)
def test_what_the_model_does_not_have_is_refused(
    run,
    tmp_path: Path,
    directory: str,
    arguments: list[str],
    words: list[str],
) -> None:
    assert_refused(run(*SHORT, "--model", directory, *arguments), *words)
    assert list(tmp_path.iterdir()) == []


def test_the_table_has_real_and_predicted_effects_side_by_side(run, directory: str) -> None:
    code, out, _ = run(*SHORT, "--model", directory, "--target", "0.1", "--target", "1.0")
    assert code == 0
    assert "real effect" in out
    assert "predicted" in out
    assert "First order" in out


def test_a_file_gets_every_part(run, tmp_path: Path, directory: str) -> None:
    code, *_ = run(*SHORT, "--model", directory, "--what", "layers", "--out", "ablate.csv")
    assert code == 0
    table = pd.read_csv(tmp_path / "ablate.csv")
    assert set(table["part"]) == {"attention", "mlp"}
    assert all(math.isfinite(value) for value in table["predicted_effect"])
