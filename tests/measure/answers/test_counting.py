"""Corollary 6.2 on a model: predicted and measured counts, against Hugging Face, and verdicts on
made-up runs.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import ostools as ost
from ostools import mitigations
from ostools.ground.errors import InputError
from ostools.measure.answers.counting import COLUMNS, Counting, counting, summarise
from ostools.measure.collapse.prompt_sets import RenderedPairs
from ostools.measure.collapse.result import Collapse
from ostools.models import encode
from ostools.models.tokens import token_text
from ostools.tasks import AppendixTask
from tests.checkpoints import D_VOCAB, tiny_model
from tests.reporting.made import made_collapse


@pytest.fixture(scope="module")
def counted(embedded) -> Counting:
    return ost.measure.counting(embedded, "count-ones", lengths=(9, 10, 19), dtypes=("float32",))


@pytest.fixture(scope="module")
def collapsed() -> tuple[Any, Counting]:
    """A model that counts nothing, and whose prompts soon cannot be told apart in 16 bits."""
    model = tiny_model("gemma", seed=2, scale=0.1, n_layers=1, fresh=True)
    own: Any = model.original_model
    own.generation_config.eos_token_id = list(
        range(D_VOCAB)
    )  # one token says all that is asked here
    return model, counting(model, "count-ones-figure-5", lengths=range(1, 34), dtypes=("bfloat16",))


def test_the_embedded_model_counts(counted: Counting) -> None:
    frame: Any = counted.frame
    assert list(frame.columns) == list(COLUMNS)
    assert {name: str(frame[name].dtype) for name in COLUMNS} == COLUMNS
    assert frame["length"].tolist() == [9, 10, 19]
    assert frame["dtype"].tolist() == ["float32"] * 3
    assert frame["key"].tolist() == frame["answer"].tolist() == ["9", "10", "19"]
    assert frame["correct"].all()
    assert (frame["absolute_error"] == 0).all()
    assert frame["first_token"].tolist() == ["9", "1", "1"]
    assert frame["first_token_right"].all()
    assert frame["next_right"].all()
    # 9 and 10, 19 and 20 begin differently; 10 and 11 alike.
    assert frame["right_ones_differ"].tolist() == [True, False, True]
    assert frame["same_first_token"].tolist() == [False, True, False]
    # Two routes to the same tokens: generation, and the passes of `collapse`.
    logits: Any = counted.curve.frame.query("site == 'logits' and per == 'vector' and norm == 'l2'")
    assert logits["same_top_token"].tolist() == frame["same_first_token"].tolist()


def test_a_mitigation_is_in_the_answers_and_in_the_curve(embedded, counted: Counting) -> None:
    window = mitigations.mitigation("sliding-window:window=6")
    found: Any = ost.measure.counting(
        embedded, "count-ones", lengths=(9, 19), dtypes=("float32",), mitigation=window
    )
    assert found.provenance.parameters["mitigation"] == "sliding-window:window=6"
    pairs = RenderedPairs(embedded, AppendixTask("count-ones"), encoding={"chat": False})
    direct = ost.collapse(embedded, pairs, lengths=(9, 19), dtypes=("float32",), mitigation=window)
    pd.testing.assert_frame_equal(found.curve.frame, direct.frame)
    line = "\nThe final answer to your maths question is: "
    ids = [encode(embedded, AppendixTask("count-ones").prompt(n) + line).ids[None] for n in (9, 19)]
    assert found.frame["tokens"].tolist() == [one.shape[1] for one in ids]
    with torch.no_grad(), window.hooks(embedded):
        first = [int(embedded(one)[0, -1].argmax()) for one in ids]
    assert found.frame["first_token"].tolist() == [
        token_text(embedded.tokenizer, one) for one in first
    ]
    assert (
        found.frame["first_token"].tolist()
        != counted.frame.set_index("length")["first_token"][[9, 19]].tolist()
    )


def test_a_prediction_is_the_hidden_range_and_is_held_against_the_answers(collapsed) -> None:
    _, result = collapsed
    verdicts: Any = result.curve.verdicts().set_index("site")
    summary: Any = result.summary
    row = summary.iloc[0]
    assert row["impossible_from"] == verdicts.loc["y", "first"]
    assert row["impossible_status"] == verdicts.loc["y", "status"]
    assert row["impossible_from"] <= 3
    frame: Any = result.frame
    beyond = frame[(frame["dtype"] == "bfloat16") & (frame["length"] >= row["impossible_from"])]
    assert (
        beyond["distance"] <= beyond["pair_noise"] * (1 + 1e-6)
    ).all()  # equal where y and y* are the same numbers
    assert row["pairs_hidden"] == len(beyond)
    tokens = beyond["first_token"].tolist()
    flips = sum(a != b for a, b in pairwise(tokens))
    assert row["differ_hidden"] - flips in (0, 1)  # the last count's neighbour has no row
    assert row["tested_pairs"] == beyond["right_ones_differ"].sum() >= 5
    assert (row["right_once"], row["right_twice"], row["verdict"]) == (0, 0, "not tested")
    assert (row["errors"], row["something_else"] + row["cut_off"], row["counts"]) == (0, 33, 33)


def test_the_reference_has_no_noise_to_predict_from() -> None:
    found = summarise(made(RIGHT).assign(dtype="float64"), curve(25)).iloc[0]
    assert pd.isna(found["impossible_from"])
    assert "float64 is the reference" in str(found["impossible_status"])
    assert found["verdict"] == "not tested"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"task": "count-wrd"}, "unknown task 'count-wrd': did you mean 'count-word'"),
        ({"lengths": [0]}, "whole numbers of at least 1, found 0"),
        (
            {"lengths": [46, 47]},
            "a prompt of 48 items takes 258 tokens with the answer, the model's context holds 256",
        ),
        ({"dtypes": ["float8"]}, "unknown dtype 'float8'"),
        ({"seed": True}, "seed: expected a whole number, found True"),
        (
            {"mitigation": "separator:every=3"},
            "counting: expected a mitigation of the forward pass, found separator, which rewrites",
        ),
        (
            {"mitigation": "sliding-window:window=400"},
            "counting: expected a mitigation that changes this prompt",
        ),
    ],
)
def test_refuses(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        counting(tiny_model("gemma"), **{"lengths": [1], **options})


def curve(y: int | None, last: int = 40) -> Collapse:
    """A curve that is hidden at y from that length on to `last`."""
    return made_collapse(
        lambda n: 0.1 if y is not None and y <= n <= last else 1.0,
        lengths=range(1, 41),
        noise={"made": 0.5},
    )


def made(said: list[str]) -> pd.DataFrame:
    """A run over counts 1, 2, ...: `said` are the answers, digit by digit; the last is only the
    neighbour of the one before.
    """
    rows: Any = pd.DataFrame([*pairwise(said)], columns=["here", "next"])
    n = rows.index + 1
    number = rows["here"].replace("x", None).astype("Int64")
    right, right_next = n.astype(str), (n + 1).astype(str)
    return pd.DataFrame(
        {
            **{
                "dtype": "made",
                "length": n,
                "number": number,
                "absolute_error": (number - n).abs(),
            },
            **{
                "kind": np.where(number.isna(), "something else", "answered"),
                "correct": rows["here"] == right,
            },
            "first_token_right": rows["here"].str[0] == right.str[0],
            "next_right": rows["next"].str[0] == right_next.str[0],
            "same_first_token": rows["here"].str[0] == rows["next"].str[0],
            "right_ones_differ": right.str[0] != right_next.str[0],
        }
    )


RIGHT = [str(n) for n in range(1, 42)]
STUCK = RIGHT[:24] + ["24"] * 17
ONE = [*STUCK[:38], "39", "40", "24"]
BELOW = [*RIGHT[:24], *["24"] * 10, "7", *["24"] * 6]


@pytest.mark.parametrize(
    ("said", "last", "counts", "verdict"),
    [
        # 29 and 30, 39 and 40: two pairs beyond 25 that ask for different digits.
        (RIGHT, 40, (16, 2, 0, 2, 2), "contradicted"),
        (STUCK, 40, (16, 2, 1, 0, 0), "consistent"),
        (ONE, 40, (16, 2, 1, 1, 3), "contradicted"),
        (
            ONE,
            34,
            (10, 1, 1, 0, 0),
            "consistent",
        ),  # apart again from 35 on: nothing is predicted of 39 and 40
        (BELOW, 40, (16, 2, 1, 0, 2), "differs below the noise"),
    ],
)
def test_right_twice_beyond_the_impossible_count_is_a_contradiction(
    said: list[str], last: int, counts: tuple[int, ...], verdict: str
) -> None:
    found: Any = summarise(made(said), curve(25, last)).iloc[0]
    names = ["pairs_hidden", "tested_pairs", "right_once", "right_twice", "differ_hidden"]
    assert (tuple(found[names]), found["verdict"]) == (counts, verdict)
    assert found["impossible_from"] == 25


@pytest.mark.parametrize(
    ("said", "first", "always", "errors", "something_else"),
    [
        (["1", "8", "3", "9"], 2, None, 1, 0),
        (["1", "8", "3", "8", "x", "9"], 2, 4, 2, 1),
        (["1", "8", "x", "4", "9"], 2, None, 1, 1),
        (["x", "x", "x", "9"], None, None, 0, 3),
    ],
)
def test_first_error_and_always(
    said: list[str], first: int | None, always: int | None, errors: int, something_else: int
) -> None:
    found: Any = summarise(made(said), curve(None)).iloc[0]
    for name, wanted in (("first_error", first), ("always_errs_from", always)):
        assert pd.isna(found[name]) if wanted is None else found[name] == wanted
    assert (found["errors"], found["something_else"], found["counts"]) == (
        errors,
        something_else,
        len(said) - 1,
    )
