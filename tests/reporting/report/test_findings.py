"""Every sentence, both ways: where the data say yes, and where they say no."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ostools.ground.words import factor, number
from ostools.measure import Comparison
from ostools.reporting.findings import sensitivity as findings
from ostools.reporting.findings.collapse import collapse_findings, collapse_summary
from tests.reporting.made import made_collapse, made_comparison, made_sensitivity

# --- collapse


def _said(result) -> str:
    return " ".join(collapse_findings(result))


def test_a_falling_curve_is_said_to_fall_with_its_power() -> None:
    said = _said(made_collapse(lambda n: 3.0 / n))
    assert "it falls" in said
    assert "it falls. The median" in said
    assert ", from n = 8 on as n^-k with k = 1, 95% interval 1 to 1." in said
    assert "does not fall" not in said
    assert "goes from 3 at n = 1 to 0.0234 at n = 128" in said


def test_a_steady_curve_is_said_not_to_fall() -> None:
    said = _said(made_collapse(lambda n: 3.0))
    assert "it does not fall" in said
    assert "not seen on this prompt" in said
    assert "it falls" not in said


def test_a_curve_that_falls_by_a_third_is_no_collapse() -> None:
    said = _said(made_collapse(lambda n: 3.0 * (0.66 if n > 60 else 1.0)))
    assert "it falls little" in said
    assert "not a collapse over these lengths" in said


def test_an_exponential_is_told_from_a_power_and_a_jump_from_both() -> None:
    assert "as e^(-r n) with r = 0.05, 95%" in _said(made_collapse(lambda n: 3.0 * math.exp(-0.05 * n)))
    assert "to a level of 0.02" in _said(made_collapse(lambda n: 0.02 + 3.0 / n))
    assert "A fit does not decide by which law" in _said(made_collapse(lambda n: 3.0 if n < 65 else 0.01))


def test_few_lengths_claim_no_trend() -> None:
    said = _said(made_collapse(lambda n: 3.0 / n, lengths=[1, 2, 4, 8]))
    assert "4 lengths are too few to claim a trend" in said
    assert "it falls" not in said


def test_where_a_dtype_hides_the_pair_is_said_by_its_range() -> None:
    result = made_collapse(lambda n: 10.0 / n, noise={"float32": 1e-9, "bfloat16": 0.33})
    said = _said(result)
    # 10 / 30 is still above 0.33, 10 / 31 below.
    assert "In bfloat16 the pair is hidden from 31 on, up to 128, the last length tried (all 98 lengths tried);" in said
    assert "In float32 the pair is not hidden at any of the 128 lengths tried, up to 128;" in said


def test_a_seed_in_which_the_pair_is_apart_is_no_hidden_length() -> None:
    result = made_collapse(lambda n: 10.0 / n, noise={"bfloat16": 0.33}, seeds=(0, 1))
    apart = (result.frame["seed"] == 1) & (result.frame["length"] > 100)
    result.frame.loc[apart, "float64_distance"] = 5.0
    assert "hidden from 31 to 100 (all 70 lengths tried), apart again from 101" in _said(result)


@pytest.mark.parametrize(
    ("trained", "said"),
    [
        (None, "does not fall on figure-5a (10)"),
        (128, "does not fall on figure-5a (10)"),
        (64, "falls on figure-5a (0.1, up to the trained 64)"),
        (4, "does not fall on figure-5a (10, beyond the trained 4)"),
    ],
)
def test_the_headline_is_of_the_trained_lengths_where_there_are_some(trained: int | None, said: str) -> None:
    """10 up to n = 32, 1 up to 64, then 100: a tenth inside the trained lengths, ten times as much beyond them."""
    result = made_collapse(lambda n: 10.0 if n <= 32 else 1.0 if n <= 64 else 100.0)
    model = {"name": "made", **({} if trained is None else {"trained_lengths": {"count-ones-figure-5": trained}})}
    (trend,) = collapse_summary([replace(result, provenance=replace(result.provenance, model=model))])
    assert f", {said} (in brackets: median of the last quarter" in trend


# --- sensitivity


def test_the_most_and_the_least_sensitive_tokens_are_named() -> None:
    values = [1.0, 4.0, 0.5, 2.0]
    (said,) = findings.sensitivity_findings(made_sensitivity({"full": values}, ["a", " peak", "low\n", "d"]))
    assert "most to token 1 “·peak”, operator norm 4" in said
    assert "least to token 2 “low\\n”, 0.5" in said
    assert "a factor of 8 apart" in said


def test_an_estimate_is_not_called_measured_and_has_no_operator_norm() -> None:
    """Frobenius norms are twice the operator norms here."""
    made = made_sensitivity({"full": [1, 4, 2], "frozen": [1, 2, 2]})
    estimated = replace(made, frame=made.frame.assign(method="estimate"))
    said = " ".join(findings.sensitivity_findings(estimated))
    assert "Estimated, full: " in said
    assert "Frobenius norm 8" in said
    assert "the estimated norm is" in said
    assert "easured" not in said
    assert "operator" not in said


# --- bounds and predictions

PROFILE = np.array([1.0, 3.0, 2.0, 5.0, 4.0, 6.0])


def _of(variant: str, values: np.ndarray) -> str:
    (said,) = findings.comparison_findings(made_comparison(PROFILE.tolist(), {variant: values.tolist()}))
    return said


def test_a_certified_bound_that_holds_but_is_loose() -> None:
    said = _of("local", PROFILE * 1e5)
    assert "holds at all 6 tokens" in said
    assert "10^5.0 times the measured norm in the median" in said
    assert "says nothing about how large the sensitivity is" in said
    assert "almost as measured (Spearman 1.00)" in said
    assert "DOES NOT HOLD" not in said


def test_a_certified_bound_that_fails_is_shouted() -> None:
    values = PROFILE * 10
    values[2] = 0.5
    said = _of("windowed(1)", values)
    assert "IT DOES NOT HOLD, the measured norm is larger at 1 of 6 tokens" in said
    assert "please report it" in said
    assert "holds at all" not in said


def bounds_said(made: Comparison) -> str:
    headline = findings.bounds_headline(made)
    assert headline is not None
    return f"{headline.verdict} {headline.text}"


@pytest.mark.parametrize("left_open", [0, 1])
def test_one_undecided_bound_is_in_the_headline(left_open: int) -> None:
    """Two bounds, of which one is open: not every one holds, whichever is the tightest; and a broken one goes before it."""
    made = made_comparison([1.0, 2.0, 3.0], {"windowed(1)": [90.0] * 3, "local": [10.0, 20.0, 30.0]})
    verdicts: list[object] = [True, True]
    verdicts[left_open] = pd.NA
    said = bounds_said(replace(made, summary=made.summary.assign(holds=verdicts)))
    assert "does not decide whether 1 of 2 certified bounds hold" in said
    assert "Every certified bound holds" not in said
    verdicts[1 - left_open] = False
    said = bounds_said(replace(made, summary=made.summary.assign(holds=verdicts)))
    assert f"CERTIFIED BOUNDS FAIL: {('local', 'windowed(1)')[left_open]}." in said


@pytest.mark.parametrize(
    ("times", "words"), [(0.99, "below the measured frozen operator norm at 1 of"), (1.0, "lies above")]
)
def test_below_is_below_by_any_amount(times: float, words: str) -> None:
    assert words in _of("proof", PROFILE * np.array([times] + [9.0] * (len(PROFILE) - 1)))


def test_a_comparison_with_an_estimate_is_not_told_as_measured() -> None:
    made = made_comparison([1.0, 2.0, 3.0], {"local": [1.0] * 3, "proof": [1.0, 2.0, 4.0]})
    estimated = replace(made, summary=made.summary.assign(method="estimate"))
    bound, paper = findings.comparison_findings(estimated)
    assert "lower end of the estimated norm" in bound
    assert "lower end of the estimated frozen operator norm" in paper
    forms = findings.forms_headline(estimated)
    assert forms is not None
    assert "measured" not in bound + paper + bounds_said(estimated) + forms.text
    assert "estimated" not in " ".join(findings.comparison_findings(made))


# --- numbers


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (number, 0.0, "0"),
        (number, 0.012345, "0.0123"),
        (number, 1234.5, "1,234"),
        (number, 999.6, "1,000"),
        (number, -0.5, "-0.5"),
        (number, 1.5e-7, "1.5e-7"),
        (number, 2e9, "2.0e9"),
        (number, float("nan"), "unknown"),
        (number, float("inf"), "infinite"),
        (factor, 0.30103, "2"),
        (factor, 6.13, "10^6.1"),
        (factor, -0.5, "0.316"),
        (factor, float("inf"), "infinitely many"),
    ],
)
def test_numbers_are_written_short(write: Callable[[float], str], value: float, text: str) -> None:
    assert write(value) == text


def test_an_exact_collapse_is_said_to_be_one() -> None:
    """What is left is the rounding of float64, which does not fall any more."""
    said = _said(made_collapse(lambda n: 3.0 / n if n < 20 else 2e-15))
    assert "from n = 20 on it is the rounding of float64 itself. The two representations are the same" in said
    assert "does not fall" not in said


def test_two_tokens_have_no_shape_and_one_has_no_others() -> None:
    for count in (1, 2):
        few = made_comparison([1.0] * count, {"local": [2.0] * count, "proof": [1.0] * count})
        said = findings.comparison_findings(few)
        forms = findings.forms_headline(few)
        assert forms is not None
        assert f"`proof` is not tested here: {count} tokens, 8 needed." in forms.text
        assert len(said) == 2
        assert all("too few tokens for a shape" in one for one in said)
    three = made_comparison([1.0, 1.0, 1.0], {"local": [2.0] * 3})
    assert "is flat" in findings.comparison_findings(three)[0]


def test_a_run_says_its_certificate_once_and_adds_the_widest_interval_of_a_sketch() -> None:
    def said(*runs: dict[str, Any]) -> Any:
        made = made_sensitivity({"full": [1.0, 2.0]}, ["a", "b"])
        parameters = {"runs": {str(index): run for index, run in enumerate(runs)}}
        certified = replace(made, provenance=replace(made.provenance, parameters=parameters))
        headline = findings.certificate_headline(certified)
        in_section = [one for one in findings.sensitivity_findings(certified) if "true Jacobian" in one]
        assert in_section == ([] if headline is None else [f"{headline.verdict} {headline.text}"])
        return headline

    exact, better = ({"certificate": {"within": share}} for share in (0.1, 0.002))
    assert said(exact, better).verdict.startswith("The norms are within 10% of the true Jacobian norms, at this prompt")
    assert said(better).verdict.startswith("The norms are within 0.002 of")
    sketch = said(exact | {"relative_error_reached": 0.5})
    assert "within 65% of" in sketch.verdict
    words = "the widest interval of a token is 50%, finite differences of the network itself leave 10%"
    assert words in sketch.text
    assert said(exact, {"certificate": {"within": None}}) is None
    assert said() is None
