"""Corollary 6.2 on a model: predicted and measured counts, against Hugging Face, and verdicts on made-up runs."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pandas as pd
import pytest
import torch

import mitigations
import ostools as ost
from ostools.ground.errors import InputError
from ostools.measure.answers.counting import COLUMNS, Counting, counting, summarise
from ostools.measure.answers.prefilled import PrefilledPairs
from ostools.measure.collapse.result import Collapse
from ostools.measure.collapse.verdicts import Curve as MadeCurve
from ostools.measure.collapse.verdicts import CurveVerdict, Limits, judge
from ostools.models import encode
from ostools.models.tokens import token_text
from ostools.results import Provenance
from ostools.tasks import AppendixTask
from tests.checkpoints import D_VOCAB, tiny_model


@pytest.fixture(scope="module")
def counted(embedded) -> Counting:
    return ost.counting(embedded, "count-ones", lengths=(9, 10, 19), dtypes=("float32",))


@pytest.fixture(scope="module")
def collapsed() -> tuple[Any, Counting]:
    """A model that counts nothing, and whose prompts soon cannot be told apart in 16 bits."""
    model = tiny_model("gemma", seed=2, scale=0.1, n_layers=1, fresh=True)
    own: Any = model.original_model
    own.generation_config.eos_token_id = list(range(D_VOCAB))  # one token says all that is asked here
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


def test_first_tokens_are_hugging_faces_own(embedded, counted: Counting) -> None:
    own: Any = embedded.original_model
    frame: Any = counted.frame
    for _, row in frame[frame["dtype"] == "float32"].iterrows():
        line = AppendixTask("count-ones").prompt(row["length"]) + "\nThe final answer to your maths question is: "
        ids = encode(embedded, line).ids[None]
        assert ids.shape[1] == row["tokens"]
        with torch.no_grad():
            logits = own(ids).logits[0, -1]
        assert embedded.tokenizer.decode([int(logits.argmax())]) == row["first_token"]


def test_a_mitigation_is_in_the_answers_and_in_the_curve(embedded, counted: Counting) -> None:
    window = mitigations.mitigation("sliding-window:window=6")
    found: Any = ost.counting(embedded, "count-ones", lengths=(9, 19), dtypes=("float32",), mitigation=window)
    assert found.provenance.parameters["mitigation"] == "sliding-window:window=6"
    pairs = PrefilledPairs(embedded, AppendixTask("count-ones"), chat=False)
    curve: Any = ost.collapse(embedded, pairs, lengths=(9, 19), dtypes=("float32",), mitigation=window)
    pd.testing.assert_frame_equal(found.curve.frame, curve.frame)
    opened = pairs.prompts([9, 19], 0)
    with torch.no_grad(), window.hooks(embedded):
        first = [int(embedded(torch.tensor([opened[n].ids]))[0, -1].argmax()) for n in (9, 19)]
    assert found.frame["first_token"].tolist() == [token_text(embedded.tokenizer, one) for one in first]
    assert found.frame["first_token"].tolist() != counted.frame.set_index("length")["first_token"][[9, 19]].tolist()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("separator:every=3", "counting: expected a mitigation of the forward pass, found separator, which rewrites"),
        ("sliding-window:window=400", "counting: expected a mitigation that changes this prompt"),
    ],
)
def test_a_mitigation_that_cannot_act_is_refused(embedded, given: str, words: str) -> None:
    with pytest.raises((InputError, mitigations.MitigationError), match=words):
        ost.counting(embedded, "count-ones", lengths=(9,), dtypes=("float32",), mitigation=given)


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
    assert (beyond["distance"] <= beyond["pair_noise"] * (1 + 1e-6)).all()  # equal where y and y* are the same numbers
    assert row["pairs_hidden"] == len(beyond)
    tokens = beyond["first_token"].tolist()
    flips = sum(a != b for a, b in pairwise(tokens))
    assert row["differ_hidden"] - flips in (0, 1)  # the last count's neighbour has no row
    assert row["tested_pairs"] == beyond["right_ones_differ"].sum() >= 5
    assert (row["right_once"], row["right_twice"], row["verdict"]) == (0, 0, "not tested")
    assert (row["errors"], row["something_else"] + row["cut_off"], row["counts"]) == (0, 33, 33)


def test_the_reference_has_no_noise_to_predict_from() -> None:
    found = summarise(made(RIGHT).assign(dtype="float64"), Curve(y=25)).iloc[0]
    assert pd.isna(found["impossible_from"])
    assert "float64 is the reference" in str(found["impossible_status"])
    assert found["verdict"] == "not tested"


OPTIONS: dict[str, Any] = {"lengths": [1]}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"task": "count-wrd"}, "unknown counting task 'count-wrd': did you mean 'count-word'"),
        ({"lengths": [0]}, "whole numbers of at least 1, found 0"),
        (
            {"lengths": [46, 47]},
            "a prompt of 48 items takes 258 tokens with the answer, the model's context holds 256",
        ),
        ({"dtypes": ["float8"]}, "unknown dtype 'float8'"),
        ({"seed": True}, "seed: expected a whole number, found True"),
    ],
)
def test_refuses(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        counting(tiny_model("gemma"), **(OPTIONS | options))


class Curve(Collapse):
    """A curve of which only the lengths are known at which the pair is hidden at y: from y on to `last`."""

    def __init__(self, y: int | None, last: int = 40, n_max: int = 40) -> None:
        object.__setattr__(self, "spans", (y, last, n_max))
        super().__init__(pd.DataFrame(), Provenance.without_model(), pd.DataFrame())

    def verdicts_over_seeds(
        self, per: str = "vector", norm: str = "l2"
    ) -> dict[tuple[str, str, str, int], CurveVerdict]:
        y, last, n_max = self.spans  # pyright: ignore[reportAttributeAccessIssue]
        tried = list(range(1, n_max + 1))
        hidden = [y is not None and y <= n <= last for n in tried]
        curve = MadeCurve(("t", "task", 0, "made", "y", 2), tried, tried, hidden)
        return {("task", "made", "y", 2): judge(curve, Limits())}


def made(said: list[str]) -> pd.DataFrame:
    """A run over counts 1, 2, ...: `said` are the answers, digit by digit; the last is only the neighbour of the one before."""
    rows = []
    for n, (here, following) in enumerate(pairwise(said), start=1):
        rows.append(
            {
                "dtype": "made",
                "length": n,
                "kind": "answered" if here != "x" else "something else",
                "number": int(here.rstrip(".")) if here != "x" else None,
                "absolute_error": abs(int(here.rstrip(".")) - n) if here != "x" else None,
                "correct": here.rstrip(".") == str(n),
                "first_token_right": here[0] == str(n)[0],
                "next_right": following[0] == str(n + 1)[0],
                "same_first_token": here[0] == following[0],
                "right_ones_differ": str(n)[0] != str(n + 1)[0],
            }
        )
    return pd.DataFrame(rows).astype({"number": "Int64", "absolute_error": "Int64"})


def verdict(said: list[str], curve: Collapse) -> Any:
    return summarise(made(said), curve).iloc[0]


RIGHT = [str(n) for n in range(1, 42)]


def test_right_twice_beyond_the_impossible_count_is_a_contradiction() -> None:
    found = verdict(RIGHT, Curve(y=25))
    # 29 and 30, 39 and 40: two pairs beyond that ask for different digits, both answered right.
    assert (found["tested_pairs"], found["right_twice"], found["differ_hidden"]) == (2, 2, 2)
    assert found["verdict"] == "contradicted"
    stuck = RIGHT[:24] + ["24"] * 17
    found = verdict(stuck, Curve(y=25))
    assert (found["tested_pairs"], found["right_once"], found["right_twice"], found["differ_hidden"]) == (2, 1, 0, 0)
    assert found["verdict"] == "consistent"
    one = [*stuck[:38], "39", "40", "24"]
    assert verdict(one, Curve(y=25))["verdict"] == "contradicted"
    # Apart again from 35 on, where 39 and 40 lie: nothing is predicted of them.
    again = verdict(one, Curve(y=25, last=34))
    assert (again["pairs_hidden"], again["tested_pairs"], again["verdict"]) == (10, 1, "consistent")


def test_different_first_tokens_below_the_noise_are_no_consistency() -> None:
    found = verdict([*RIGHT[:24], *["24"] * 10, "7", *["24"] * 6], Curve(y=25))
    assert (found["right_once"], found["right_twice"], found["differ_hidden"]) == (1, 0, 2)
    assert found["verdict"] == "differs below the noise"


@pytest.mark.parametrize(
    ("said", "first", "always", "errors", "something_else"),
    [
        (["1", "8", "3", "9"], 2, None, 1, 0),
        (["1", "8", "3", "8", "x", "9"], 2, 4, 2, 1),
        (["1", "8", "x", "4.", "9"], 2, None, 1, 1),
        (["x", "x", "x", "9"], None, None, 0, 3),
    ],
)
def test_first_error_and_always(
    said: list[str], first: int | None, always: int | None, errors: int, something_else: int
) -> None:
    found = verdict(said, Curve(y=None))
    for name, wanted in (("first_error", first), ("always_errs_from", always)):
        assert pd.isna(found[name]) if wanted is None else found[name] == wanted
    assert (found["errors"], found["something_else"], found["counts"]) == (errors, something_else, len(said) - 1)
