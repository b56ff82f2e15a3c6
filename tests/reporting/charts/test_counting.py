"""The chart and the sentences of a counting run: predicted and measured by their names, nothing claimed that was not seen."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ostools.ground.errors import InputError
from ostools.measure.answers.counting import Counting
from ostools.measure.collapse.result import Collapse
from ostools.reporting.charts.answers import counting_chart
from ostools.reporting.findings.answers import counting_findings
from ostools.results import Provenance


def made(trained: int | None = None, **summary: Any) -> Counting:
    """Sixteen counts in bfloat16: right, wrong and without a number, with an answer that would like to end a script."""
    n = np.arange(1, 17)
    kinds = np.array(["right", "wrong", "none", "right"] * 4)
    frame = pd.DataFrame(
        {
            "task": "count-ones",
            "length": n,
            "dtype": "bfloat16",
            "key": [str(i) for i in n],
            "answer": "</script>",
            "kind": np.where(kinds == "none", "something else", "answered"),
            "number": pd.array([7 if kind != "none" else None for kind in kinds], dtype="Int64"),
            "absolute_error": pd.array([{"right": 0, "wrong": 30}.get(kind) for kind in kinds], dtype="Int64"),
            "correct": pd.array(kinds == "right", dtype="boolean"),
            "right_ones_differ": pd.array(n < 10, dtype="boolean"),
            "distance": 2.0 / n,
            "pair_noise": 0.3,
            "machine_line": 0.1,
        }
    )
    row = {
        "dtype": "bfloat16",
        "impossible_from": 7,
        "impossible_status": "hidden from 7 to 16 (all 10 lengths tried)",
        "first_error": 2,
        "always_errs_from": None,
        "errors": 4,
        "something_else": 4,
        "cut_off": 0,
        "counts": 16,
        "pairs_hidden": 10,
        "differ_hidden": 0,
        "tested_pairs": 3,
        "right_once": 2,
        "right_twice": 0,
        "verdict": "consistent",
    }
    table = pd.DataFrame([row | summary])
    provenance = replace(
        Provenance.without_model(), model={"trained_lengths": {"count-ones": trained} if trained else None}
    )
    return Counting(frame, provenance, table, Collapse(pd.DataFrame(), provenance, pd.DataFrame()))


def test_sentences_tell_predicted_from_measured() -> None:
    first, scope = counting_findings(made())
    assert first.startswith(
        "bfloat16: the pair of n and n + 1 items is hidden from 7 to 16 (all 10 lengths tried). There the"
    )
    assert "are not expected to differ (predicted)" in first
    assert "Measured: 8 of 16 answers have the right number, 4 with something that is not one whole number" in first
    assert "the first wrong answer is at n = 2, and no wrong answer follows the last right one" in first
    assert "the first tokens are the same at 10 of 10 pairs." in first
    assert "the model does not give both at any of them (it gives one at 2), as predicted" in first
    assert "CONTRADICTION" not in first
    assert "one-sided" in scope


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"differ_hidden": 2}, "the same at 8 of 10 pairs; at 2 they differ below the noise"),
        ({"right_twice": 2}, "the model gives both at 2, a CONTRADICTION of the prediction"),
        (
            {"tested_pairs": 0},
            "first tokens do not differ at any of these pairs, so the answers do not test the prediction",
        ),
        (
            {"first_error": None, "errors": 0, "something_else": 0},
            "16 of 16 answers have the right number; none is wrong",
        ),
        (
            {"impossible_from": None, "impossible_status": "not hidden at any", "pairs_hidden": 0},
            "no impossible count is predicted \\(not hidden at any\\)\\. Measured: [^.]*\\.$",
        ),
    ],
)
def test_sentences_for_what_else_can_be(options: dict[str, Any], words: str) -> None:
    assert re.search(words, counting_findings(made(**options))[0])


def test_every_answer_is_drawn_as_what_it_is() -> None:
    spec: Any = json.loads(counting_chart(made()).to_json())
    layer = spec["vconcat"][1]["layer"][0]
    (columns,) = spec["datasets"][layer["data"]["name"]]
    outcomes = pd.Series(columns["outcome"]).value_counts().to_dict()
    none = "no number: something else (at the top edge)"
    assert outcomes == {"right": 8, "wrong number": 4, none: 4}
    top = {
        error for error, kind in zip(columns["error"], columns["outcome"], strict=True) if kind.startswith("no number")
    }
    assert top == {61.0}
    assert (
        max(error for error, kind in zip(columns["error"], columns["outcome"], strict=True) if kind == "wrong number")
        == 30
    )


def test_it_draws_with_one_count_and_without_noise(tmp_path) -> None:
    result = made()
    frame: Any = result.frame
    short = replace(result, frame=frame[:1].assign(pair_noise=float("nan"), distance=0.0))
    assert short.save(tmp_path / "one.png").stat().st_size > 1000
    assert "exact zeros" in counting_chart(short).to_json()
    with pytest.raises(InputError, match="a counting curve holds 16 values that are not finite"):
        counting_chart(replace(result, frame=frame.assign(distance=float("inf"))))
