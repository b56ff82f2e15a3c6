"""The three questions and the ratio of two results of one kind, on frames whose answers are known."""

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
import torch

import ostools as ost
from ostools import hooks
from ostools.ground.lens import TransformerBridge
from ostools.measure import Bounds, Comparison, Sensitivity
from ostools.measure.profiles.compare import require_same_run
from ostools.results import Provenance
from tests.checkpoints import refused
from tests.reporting.made import made_paths, made_sensitivity

MEASURED = [4.0, 1.0, 2.0, 8.0]


def provenance(
    weight_hash: str = "a", ids: tuple[int, ...] = (1, 2, 3, 4), dtype: str = "float32"
) -> Provenance:
    return Provenance({"weight_hash": weight_hash, "dtype": dtype}, {}, ids, {})


def profile(
    linearisation: str = "frozen",
    measured: list[float] = MEASURED,
    method: str = "exact",
    width: float = 1.0,
    **origin: Any,
) -> Sensitivity:
    """Exact, or estimated with intervals that reach from the value to `width` times it."""
    frame: Any = made_sensitivity({linearisation: measured}).frame
    upper = {name: width * frame[name] for name in ("operator_upper", "frobenius_upper")}
    return Sensitivity(frame.assign(method=method, **upper), provenance(**origin))


def path(values: list[float], **origin: Any) -> Bounds:
    return Bounds(made_paths({"local": values}).frame, provenance(**origin))


def only(comparison: Comparison) -> Any:
    assert len(comparison.summary) == 1
    return comparison.summary.iloc[0]


def test_looseness_in_decades_and_rank_correlation() -> None:
    row = only(ost.compare(profile(), path([400.0, 10.0, 200.0, 8000.0])))
    assert bool(row["holds"])
    assert row["median_log10_looseness"] == pytest.approx(2.0)
    assert (row["max_log10_looseness"], row["spearman"]) == (pytest.approx(3.0), pytest.approx(1.0))
    reverse = only(ost.compare(profile(), path([20.0, 40.0, 30.0, 10.0])))
    assert reverse["spearman"] == pytest.approx(-1.0)


def test_tokens_that_are_0_on_both_sides_say_nothing() -> None:
    values, zeros = [400.0, 10.0, 200.0, 80.0], [0.0] * 5
    short = ost.compare(profile(), path(values))
    padded = ost.compare(profile(measured=[*zeros, *MEASURED]), path([*zeros, *values]))
    pd.testing.assert_frame_equal(short.summary, padded.summary)
    assert "in the median over tokens" in short.findings()[0]
    assert "in the median over the 4 of 9 tokens that reach y" in padded.findings()[0]
    change, padded_change = (
        ost.compare(
            profile(measured=[*front, *MEASURED]), profile(measured=[*front, 4.0, 2.0, 1.0, 8.0])
        )
        for front in ([], zeros)
    )
    pd.testing.assert_frame_equal(change.summary, padded_change.summary)


@pytest.mark.parametrize(
    ("dtype", "rounding"), [("float32", 1e-4), ("float64", 1e-9), ("bfloat16", 1e-4)]
)
@pytest.mark.parametrize(("short_by", "holds"), [(0.5, True), (2.0, False)])
def test_a_bound_holds_to_the_rounding_of_its_dtype(
    dtype: str, rounding: float, short_by: float, holds: bool
) -> None:
    """Short of the measured norm by half of the rounding it is the same number; by twice that it is
    broken. At the largest.
    """
    value = [400.0, 10.0, 200.0, 8.0 * (1 - short_by * rounding)]
    assert bool(only(ost.compare(profile(dtype=dtype), path(value, dtype=dtype)))["holds"]) is holds


@pytest.mark.parametrize(
    ("bound", "verdict"), [(4.1, True), (2.0, None), (1.0, None), (0.9, False)]
)
def test_an_estimate_decides_what_its_interval_decides(bound: float, verdict: bool | None) -> None:
    """The interval reaches from the value to 4 times it; the bound is `bound` times the value at
    one token, above elsewhere.
    """
    value = [9 * 4.0, 9 * 1.0, bound * 2.0, 9 * 8.0]
    row = only(ost.compare(profile(method="estimate", width=4.0), path(value)))
    assert row["method"] == "estimate"
    assert (row["holds"] is pd.NA) if verdict is None else (bool(row["holds"]) is verdict)
    exact = only(ost.compare(profile(), path(value)))
    assert (exact["method"], bool(exact["holds"])) == ("exact", bound >= 1)


def test_tokens_are_compared_by_their_places_whatever_the_order_of_rows() -> None:
    measured, paths = profile(), path([400.0, 10.0, 200.0, 8000.0])
    pd.testing.assert_frame_equal(
        ost.compare(Sensitivity(measured.frame.iloc[::-1], measured.provenance), paths).summary,
        ost.compare(measured, paths).summary,
    )
    some = Sensitivity(measured.frame.iloc[1:], measured.provenance)
    other = Sensitivity(measured.frame.assign(token_id=[0, 1, 2, 9]), measured.provenance)
    for one in (some, other):
        refused("each token once in the profile and in variant", ost.compare, one, paths)


def test_another_linearisation_than_the_bounds_is_refused() -> None:
    with pytest.raises(
        ost.InputError,
        match=r"'frozen' derivative, the profile has full.*linearisations=\['frozen'\]",
    ):
        ost.compare(profile("full"), path([9.0] * 4))


def test_one_profile_under_another_or_of_another_prompt_is_refused() -> None:
    backwards: Any = path([9.0] * 4)
    refused(
        r"expected a Sensitivity or an? Evaluation, found Bounds", ost.compare, backwards, profile()
    )
    refused("of different prompts", ost.compare, profile(), path([9.0] * 4, ids=(1, 2, 3, 5)))


def test_ratios_are_second_over_first_and_joined_on_norm_and_linearisation() -> None:
    found = ost.compare(
        profile(measured=[4.0, 1.0, 2.0, 8.0]),
        profile(measured=[2.0, 1.0, 8.0, 8.0], weight_hash="b"),
    )
    assert isinstance(found, ost.measure.Change)
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
    assert found.findings()[-1] == "Tokens without a ratio, as the first norm is 0 or rounding: 2."


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
    part = replace(one, frame=both.frame[:-1])
    alone = r"found in one alone \('full', 'frobenius', 0, 0\)"
    for pair, words in (
        (
            (one, profile(measured=[1.0, 2.0, 3.0], ids=(1, 2, 3))),
            r"found 4 and 3 tokens, which differ at position 3: .* measure both on one prompt",
        ),
        ((one, other_id), "found 4 and 4 tokens, which differ at position 2"),
        ((part, both), r"found in one alone \('full', 'frobenius', 0, 3\)"),
        ((one, other_text), "tokens, which differ at position 1: .* of one tokenizer"),
        ((both, one), alone),
        ((one, both), alone),
        ((path([1.0] * 4), one), r"expected a Sensitivity or an? Evaluation, found Bounds"),
    ):
        refused(words, compare, *pair)


def test_a_comparison_of_an_earlier_version_is_refused() -> None:
    """Its looseness was over tokens out of reach too, and nothing in it says so."""
    now = ost.compare(profile(), path([1.0] * 4))
    refused(
        "found looseness over tokens out of reach too, which an earlier ostools",
        replace,
        now,
        summary=now.summary.drop(columns="tokens"),
    )
