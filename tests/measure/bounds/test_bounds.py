"""Exact cases are equalities; whether a form that is no bound may be believed; what the formulas do
not describe is refused.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

import ostools as ost
from ostools import hooks
from ostools.ground.errors import InsufficientMemoryError
from ostools.measure.bounds.variants import undescribed
from ostools.measure.first_order import FEWEST, RIGHT_RANK, belief, judged
from ostools.measure.formulas import weights
from ostools.models import Prompt
from tests.checkpoints import Family, tiny_model

IDS = [2, 40, 50, 60, 60, 61, 70]


NORMS = np.arange(1.0, 11.0)


@pytest.mark.parametrize(
    ("times", "wide", "off", "believed"),
    [
        (1.99, 1.0, 1.99, True),
        (2.01, 1.0, 2.01, False),
        (0.51, 1.0, 0.51, True),
        (0.49, 1.0, 0.49, False),
        (2.9, 3.0, 1.0, True),  # inside the interval of a norm nothing is off
        (5.9, 3.0, 5.9 / 3, True),  # beyond its ends it is counted as from an exact norm
        (1 / 5.9, 3.0, 3 / 5.9, True),
    ],
)
def test_a_size_is_right_within_a_factor_of_two(
    times: float, wide: float, off: float, believed: bool
) -> None:
    verdict = belief(NORMS * times, NORMS, NORMS / wide, NORMS * wide, scaled=True)
    assert verdict.log10_off == pytest.approx(math.log10(off))
    assert verdict.believed is believed


def test_an_order_is_right_from_the_line_on() -> None:
    assert [judged(rank, 0.0, "8 tokens", FEWEST).believed for rank in (0.899, RIGHT_RANK)] == [
        False,
        True,
    ]


def test_what_is_just_beyond_a_limit_is_not_written_as_the_limit() -> None:
    for rank, times, words in (
        (0.899996, 1.0, "Spearman 0.8999"),
        (1.0, 2.0004, "size off by a factor of 2.0004"),
        (1.0, 1 / 2.00001, "size off by a factor of 2.0001"),
    ):
        verdict = judged(rank, math.log10(times), "8 tokens", FEWEST)
        assert verdict.words == f"not believed here: {words}"


def test_what_cannot_be_tested_is_neither_believed_nor_refuted() -> None:
    few, flat = np.arange(1.0, FEWEST), np.ones(10)
    for verdict in (
        belief(few, few, few, few, scaled=True),
        belief(flat, NORMS, NORMS, NORMS, scaled=True),
    ):
        assert verdict.believed is None
        assert verdict.words.startswith("not tested here: ")


def test_zero_against_zero_says_nothing_and_against_more_is_off_infinitely() -> None:
    """Tokens that are 0 on both sides change no verdict: neither size, nor order, nor the count."""
    draw = np.random.default_rng(0)
    for count in (FEWEST - 1, FEWEST, 30):
        value, norm = 10 ** draw.normal(size=(2, count))
        padded, padded_norm = (np.concatenate([np.zeros(40), side]) for side in (value, norm))
        assert belief(padded, *[padded_norm] * 3, scaled=True) == belief(
            value, *[norm] * 3, scaled=True
        )
    norms = np.concatenate([np.zeros(6), NORMS[:4]])
    words = belief(norms + 1e-9, norms, norms, norms, scaled=True).words
    assert words.startswith("not believed here: size off by more than any factor")


def test_bounds_and_compare_say_the_same_of_one_sketch() -> None:
    """The order is that of the Frobenius norms in both; under windows, of the tokens in reach."""
    model = tiny_model("gemma", seed=3)
    prompt = Prompt.from_ids(model, [2, *range(40, 60)])
    window = "sliding-window:window=5"
    for mitigation, tokens in ((None, 21), (window, 1 + 4 * int(model.cfg.n_layers))):
        paths = ost.bounds(model, prompt, mitigation=mitigation)
        sketch = ost.sensitivity(
            model,
            prompt,
            linearisations="frozen",
            method="sketch",
            cotangents=8,
            mitigation=mitigation,
        )
        beside: Any = ost.compare(sketch, paths).summary
        assert beside["tokens"].tolist() == [tokens] * len(beside)
        forms = beside[beside["kind"] != "certified"]
        columns = ["variant", "spearman", "words"]
        pd.testing.assert_frame_equal(
            forms[columns].reset_index(drop=True), paths.beliefs[columns], check_dtype=False
        )


def test_each_form_that_is_no_bound_says_whether_it_is_believed() -> None:
    model = tiny_model("gemma", seed=3)
    prompt = Prompt.from_ids(model, [2, *range(40, 50)])
    with hooks.scale_scores(model, 2.0):  # what stands beside it is measured under the same edits
        paths = ost.bounds(model, prompt, variants=["local", "proof", "theorem-5.1"])
        beside = ost.compare(
            ost.sensitivity(model, prompt, linearisations=["frozen"]), paths
        ).summary
    beside = beside.set_index("variant")
    assert paths.beliefs["variant"].tolist() == ["proof", "theorem-5.1"]
    by_variant: Any = paths.frame.groupby("variant")["believed"].first()
    assert by_variant["local"] is pd.NA
    assert beside.loc["local", "words"] == ""
    for row in paths.beliefs.to_dict("records"):
        assert (
            by_variant[row["variant"]] == beside.loc[row["variant"], "believed"] == row["believed"]
        )
        assert row["words"].startswith("believed here" if row["believed"] else "not believed here")


def test_without_a_sketch_of_its_own_a_form_is_judged_by_compare_alone() -> None:
    model = tiny_model("gemma", seed=3)
    prompt = Prompt.from_ids(model, [2, *range(40, 50)])
    norms = ost.sensitivity(model, prompt, linearisations=["frozen"])
    with_sketch, without = (
        ost.bounds(model, prompt, variants=["local", "proof"], believe=believe)
        for believe in (True, False)
    )
    assert bool(without.frame["believed"].isna().to_numpy().all())
    assert without.beliefs.empty
    assert without.frame["value"].tolist() == with_sketch.frame["value"].tolist()
    first, second = (ost.compare(norms, paths).summary for paths in (with_sketch, without))
    pd.testing.assert_frame_equal(first, second)


def test_of_parallel_blocks_the_papers_forms_alone_say_nothing() -> None:
    assert list(undescribed(tiny_model("neox"), ["local", "windowed(2)", "proof"])) == ["proof"]


def test_more_memory_than_is_allowed_is_refused_with_both_sizes() -> None:
    words = r"path sums of 3 tokens need about 0\.\d+ GiB, 0\.00 GiB are allowed"
    with pytest.raises(InsufficientMemoryError, match=words):
        ost.bounds(tiny_model("gemma"), "ab", max_memory=1)


def test_a_hook_that_the_formulas_do_not_know_is_refused() -> None:
    model = tiny_model("gemma")
    point = model.hook_dict["blocks.0.hook_resid_pre"]
    point.add_hook(lambda tensor, hook: tensor * 2)
    with pytest.raises(ost.InputError, match="foreign"):
        ost.bounds(model, "ab")
    point.remove_hooks()


@pytest.mark.parametrize("family", ["gemma3", "llama"])
def test_grouped_heads_read_wrongly_are_caught(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: key/value heads in the wrong order."""
    model = tiny_model(family)
    honest = weights._expanded
    monkeypatch.setattr(weights, "_expanded", lambda value, heads: honest(value, heads).flip(0))
    with pytest.raises(
        ost.InputError, match="block 1: attention, computed from the weights as read here, differs"
    ):
        ost.bounds(model, "ab 12", variants="local")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"variants": "lokal"}, "unknown variant 'lokal': did you mean 'local'"),
        ({"variants": []}, "variant: expected at least one"),
        ({"mlp_norm": "power"}, "mlp_norm: expected 'svd', 'product', found 'power'"),
        ({}, "not finite"),
    ],
)
def test_refusals(options: dict[str, Any], words: str) -> None:
    model = tiny_model("gemma", fresh=True)
    model.blocks[0].mlp.out.weight[0, 0] = float("inf")
    with pytest.raises(ost.InputError, match=words):
        ost.bounds(model, "ab", **options)
