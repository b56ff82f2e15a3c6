"""Two results of one kind: the ratio of each token, on frames whose answer is known and on an edit
of a real model.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
import torch

import ostools as ost
from ostools import hooks
from ostools.ground.lens import TransformerBridge
from ostools.measure import Change
from tests.measure.profiles.test_compare import path, profile


def test_ratios_are_second_over_first_and_joined_on_norm_and_linearisation() -> None:
    found = ost.compare(
        profile(measured=[4.0, 1.0, 2.0, 8.0]),
        profile(measured=[2.0, 1.0, 8.0, 8.0], weight_hash="b"),
    )
    assert isinstance(found, Change)
    for norm in ("operator", "frobenius"):
        rows: Any = found.frame[found.frame["norm"] == norm]
        assert (
            rows["ratio"].tolist()
            == rows["lower"].tolist()
            == rows["upper"].tolist()
            == [0.5, 1.0, 4.0, 1.0]
        )
    assert found.summary["median_ratio"].tolist() == [1.0, 1.0]
    assert found.provenance.parameters["differ"] == ["weights"]


def test_a_norm_that_is_rounding_has_no_ratio() -> None:
    tiny = [4.0, 0.0, 8e-8, 8.0]
    found = ost.compare(profile(measured=tiny), profile(measured=[4.0, 3.0, 2.0, 0.0]))
    assert found.frame["ratio"].isna().tolist()[:4] == [False, True, True, False]
    assert found.summary["tokens"].tolist() == [2, 2]


def test_what_differs_is_named() -> None:
    one, edited = profile(), profile(dtype="float64")
    edited = replace(
        edited, provenance=replace(edited.provenance, edits=("mask_scores at blocks.0 (block 3)",))
    )
    found: Any = ost.compare(one, edited)
    assert found.provenance.parameters["differ"] == ["dtype", "edits"]
    assert found.provenance.parameters["second"]["edits"]
    same: Any = ost.compare(one, one)
    assert (same.frame["ratio"] == 1).all()
    assert same.provenance.parameters["differ"] == []


def test_two_heads_taken_out_are_two_edits(embedded: TransformerBridge) -> None:
    results = []
    for head in (0, 1, 1):
        with hooks.ablate_heads(embedded, [(0, head)]):
            embedded(torch.tensor([[5, 6, 7, 8, 9]]))
            edits = tuple(map(str, hooks.active_edits(embedded)))
        one = profile()
        results.append(replace(one, provenance=replace(one.provenance, edits=edits)))
    first, second, again = results
    assert ost.compare(first, second).provenance.parameters["differ"] == ["edits"]
    assert "edits" not in ost.compare(second, again).provenance.parameters["differ"]


def test_a_stored_profile_of_two_logits_is_the_same_quantity() -> None:
    """A pair is read as a list; a token is the same by its text and by its id."""
    one = profile()
    first, second = (
        replace(one, provenance=replace(one.provenance, parameters=parameters))
        for parameters in (
            {"logit": ("1", "2"), "logit_ids": (7, 8)},
            {"logit": [7, 8], "logit_ids": [7, 8]},
        )
    )
    assert bool((ost.compare(first, second).frame["ratio"] == 1).all())
    with pytest.raises(ost.InputError, match=r"same logit=, found \[7, 8\] and None"):
        ost.compare(first, one)


def test_what_is_not_the_same_quantity_is_refused() -> None:
    compare: Any = ost.compare
    one = profile()
    other_text = replace(one, frame=one.frame.assign(token=["t0", "x", "t2", "t3"]))
    both = replace(one, frame=pd.concat([one.frame, profile("full").frame]))
    # Out of a sweep of texts: the provenance knows no token ids.
    other_id = replace(one, frame=one.frame.assign(token_id=[0, 1, 9, 3]))
    twice = replace(one, frame=pd.concat([one.frame, one.frame]))
    two_prompts = replace(one, frame=pd.concat([one.frame, other_id.frame[2:3]]))
    part = replace(one, frame=both.frame[:-1])
    alone = r"found in one alone \('full', 'frobenius', 0, 0\)"
    for pair, words in (
        (
            (one, profile(measured=[1.0, 2.0, 3.0], ids=(1, 2, 3))),
            r"found 4 and 3 tokens, which differ at position 3: .* measure both on one prompt",
        ),
        ((one, other_id), "found 4 and 4 tokens, which differ at position 2"),
        ((twice, twice), r"found twice \('frozen', 'operator', 0, 0\): give results of one prompt"),
        ((two_prompts, one), "found 5 and 4 tokens, which differ"),
        ((part, both), r"found in one alone \('full', 'frobenius', 0, 3\)"),
        ((one, other_text), "tokens, which differ at position 1: .* of one tokenizer"),
        ((both, one), alone),
        ((one, both), alone),
        ((path([1.0] * 4), one), r"expected a Sensitivity or an? Evaluation, found Bounds"),
    ):
        with pytest.raises(ost.InputError, match=words):
            compare(*pair)
