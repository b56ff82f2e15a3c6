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
from ostools.measure.profiles.compare import require_same_run
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


def test_a_hook_of_somebody_else_may_be_another(embedded: TransformerBridge) -> None:
    """Nothing is known of what it does, also where it is the same one."""
    edits = []
    for factor in (1.0, 0.5):
        handle = embedded.blocks[1].register_forward_hook(lambda *it, by=factor: it[2] * by)
        edits += [tuple(map(str, hooks.active_edits(embedded))) for _ in range(2)]
        handle.remove()
    assert edits[0] == edits[1] != edits[2] == edits[3]
    one = profile()
    first, again, second, _ = (
        replace(one, provenance=replace(one.provenance, edits=it)) for it in edits
    )
    for other in (again, second):
        assert ost.compare(first, other).provenance.parameters["differ"] == [
            "perhaps edits, of which words do not say what they do"
        ]
    require_same_run("compare", first.provenance, again.provenance, "the path sum")
    with pytest.raises(ost.InputError, match="under different edits of the forward pass"):
        require_same_run("compare", first.provenance, second.provenance, "the path sum")


def test_what_is_not_the_same_quantity_is_refused() -> None:
    compare: Any = ost.compare
    one = profile()
    other_text = replace(one, frame=one.frame.assign(token=["t0", "x", "t2", "t3"]))
    both = replace(one, frame=pd.concat([one.frame, profile("full").frame]))
    alone = r"found in one alone \('full', 'frobenius', 0\)"
    for pair, words in (
        (
            (one, profile(measured=[1.0, 2.0, 3.0], ids=(1, 2, 3))),
            r"found 4 and 3 tokens, which differ at position 3: .* measure both on one prompt",
        ),
        ((one, profile(ids=(1, 2, 9, 4))), "tokens, which differ at position 2"),
        ((one, other_text), "tokens, which differ at position 1: .* of one tokenizer"),
        ((both, one), alone),
        ((one, both), alone),
        ((path([1.0] * 4), one), r"expected a Sensitivity or an? Evaluation, found Bounds"),
    ):
        with pytest.raises(ost.InputError, match=words):
            compare(*pair)
