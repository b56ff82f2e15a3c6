"""Whether a form that is no bound may be believed: order and size beside the measured norms, by rules fixed beforehand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

import hooks
import ostools as ost
from ostools.measure.bounds.belief import FEWEST, belief
from ostools.models import Prompt
from tests.checkpoints import tiny_model

NORMS = np.arange(1.0, 11.0)
IDS = [2, *range(40, 50)]


def of(value: np.ndarray, *, scaled: bool = True, wide: float = 1.0) -> Any:
    return belief(value, NORMS, NORMS / wide, NORMS * wide, scaled=scaled)


@pytest.mark.parametrize(("times", "believed"), [(1.99, True), (2.01, False), (0.51, True), (0.49, False)])
def test_a_size_is_right_within_a_factor_of_two(times: float, believed: bool) -> None:
    verdict = of(NORMS * times)
    assert verdict.believed is believed
    assert verdict.log10_off == pytest.approx(math.log10(times))


def test_inside_the_interval_of_a_norm_nothing_is_off() -> None:
    """Beyond its ends it is counted as from an exact norm."""
    assert of(NORMS * 2.9, wide=3.0).log10_off == 0
    assert of(NORMS * 6.0, wide=3.0).log10_off == pytest.approx(math.log10(2))
    assert of(NORMS / 6.0, wide=3.0).log10_off == pytest.approx(-math.log10(2))


def test_what_cannot_be_tested_is_neither_believed_nor_refuted() -> None:
    few, flat = np.arange(1.0, FEWEST), np.ones(10)
    for verdict in (belief(few, few, few, few, scaled=True), of(flat)):
        assert verdict.believed is None
        assert verdict.words.startswith("not tested here: ")


def test_zero_against_zero_is_not_off_and_against_more_infinitely() -> None:
    norms = np.concatenate([np.zeros(6), NORMS[:4]])
    assert belief(norms, norms, norms, norms, scaled=True).log10_off == 0
    assert belief(norms + 1e-9, norms, norms, norms, scaled=True).words.startswith(
        "not believed here: size off by more than any factor"
    )


def test_path_sum_says_of_each_form_that_is_no_bound_whether_it_is_believed() -> None:
    model = tiny_model("gemma", seed=3)
    prompt = Prompt.from_ids(model, IDS)
    with hooks.scale_scores(model, 2.0):  # what stands beside it is measured under the same edits
        found = ost.bounds(model, prompt, variants=["local", "proof", "theorem-5.1"])
        beside = ost.compare(ost.sensitivity(model, prompt, linearisations=["frozen"]), found).summary
    assert found.beliefs["variant"].tolist() == ["proof", "theorem-5.1"]
    by_variant: Any = found.frame.groupby("variant")["believed"].first()
    assert by_variant["local"] is pd.NA
    for name, verdict, words in zip(
        found.beliefs["variant"], found.beliefs["believed"], found.beliefs["words"], strict=True
    ):
        assert by_variant[name] == verdict
        exactly: Any = beside.set_index("variant").loc[name]
        assert bool(exactly["believed"]) == bool(verdict)
        assert words.startswith("believed here" if verdict else "not believed here")
    assert beside.set_index("variant").loc["local", "words"] == ""
    assert ("proof: not believed here" in str(found.plot().to_dict())) == (not by_variant["proof"])
