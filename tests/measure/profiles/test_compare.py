"""The three questions, on frames whose answers are known."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

import ostools as ost
from ostools.measure import Bounds, Comparison, Sensitivity
from ostools.results import Provenance
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
    assert row["max_log10_looseness"] == pytest.approx(3.0)
    assert row["spearman"] == pytest.approx(1.0)
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
    found = ost.compare(profile(dtype=dtype), path(value, dtype=dtype))
    assert bool(only(found)["holds"]) is holds


@pytest.mark.parametrize(
    ("bound", "verdict"), [(4.1, True), (2.0, None), (1.0, None), (0.9, False)]
)
def test_an_estimate_decides_what_its_interval_decides(bound: float, verdict: bool | None) -> None:
    """The interval reaches from the value to 4 times it; the bound is `bound` times the value at
    one token, above elsewhere.
    """
    value = [9 * 4.0, 9 * 1.0, bound * 2.0, 9 * 8.0]
    measured = profile(method="estimate", width=4.0)
    row = only(ost.compare(measured, path(value)))
    assert row["method"] == "estimate"
    assert (row["holds"] is pd.NA) if verdict is None else (bool(row["holds"]) is verdict)
    exact = only(ost.compare(profile(), path(value)))
    assert (exact["method"], bool(exact["holds"])) == ("exact", bound >= 1)


def test_tokens_are_compared_by_their_places_whatever_the_order_of_rows() -> None:
    measured, paths = profile(), path([400.0, 10.0, 200.0, 8000.0])
    upside_down = Sensitivity(measured.frame.iloc[::-1], measured.provenance)
    pd.testing.assert_frame_equal(
        ost.compare(upside_down, paths).summary, ost.compare(measured, paths).summary
    )
    some = Sensitivity(measured.frame.iloc[1:], measured.provenance)
    other = Sensitivity(measured.frame.assign(token_id=[0, 1, 2, 9]), measured.provenance)
    for one in (some, other):
        with pytest.raises(ost.InputError, match="each token once in the profile and in variant"):
            ost.compare(one, paths)


def test_another_linearisation_than_the_bounds_is_refused() -> None:
    with pytest.raises(
        ost.InputError,
        match=r"'frozen' derivative, the profile has full.*linearisations=\['frozen'\]",
    ):
        ost.compare(profile("full"), path([9.0] * 4))


def test_one_profile_under_another_or_of_another_prompt_is_refused() -> None:
    backwards: Any = path([9.0] * 4)
    with pytest.raises(
        ost.InputError, match=r"expected a Sensitivity or an? Evaluation, found Bounds"
    ):
        ost.compare(backwards, profile())
    with pytest.raises(ost.InputError, match="of different prompts"):
        ost.compare(profile(), path([9.0] * 4, ids=(1, 2, 3, 5)))
