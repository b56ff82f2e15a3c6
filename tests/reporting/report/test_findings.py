"""Every sentence, both ways: where the data say yes, and where they say no. Figures are computed
here a second time.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import ostools as ost
from ostools.reporting.findings import sensitivity as findings
from ostools.reporting.findings import where_read
from ostools.reporting.findings.collapse import (
    _evenly_spread,
    _trend,
    collapse_findings,
    collapse_summary,
    tails,
)
from ostools.reporting.sections.answers import task_with_room
from ostools.reporting.sections.collapse import PRECISION
from ostools.reporting.sections.records import Measurements
from tests.reporting.made import (
    PROVENANCE,
    READ_AT,
    made_collapse,
    made_comparison,
    made_evaluation,
    made_sensitivity,
)

# --- collapse


def curve_said(distance: Callable[[int], float], lengths: Any = range(1, 129)) -> str:
    return " ".join(collapse_findings(made_collapse(distance, lengths=lengths)))


def test_whether_a_curve_falls_and_by_which_law() -> None:
    falls = curve_said(lambda n: 3.0 / n)
    assert "goes from 3 at n = 1 to 0.0234 at n = 128: it falls. The median" in falls
    assert ", from n = 8 on as n^-k with k = 1, 95% interval 1 to 1." in falls
    assert "as e^(-r n) with r = 0.05, 95%" in curve_said(lambda n: 3.0 * math.exp(-0.05 * n))
    assert "to a level of 0.02" in curve_said(lambda n: 0.02 + 3.0 / n)
    assert "A fit does not decide by which law" in curve_said(lambda n: 3.0 if n < 65 else 0.01)
    steady = curve_said(lambda n: 3.0)
    assert "it does not fall" in steady
    little = curve_said(lambda n: 3.0 * (0.66 if n > 60 else 1.0))
    assert "it falls little" in little
    assert "it does not fall" in curve_said(lambda n: 3.0 * (0.85 if n > 60 else 1.0))
    assert "it falls:" not in curve_said(lambda n: 3.0 * (0.51 if n > 60 else 1.0))
    few = curve_said(lambda n: 3.0 / n, [1, 2, 4, 8])
    assert (
        "from 3 at n = 1 to 0.375 at n = 8; 3 evenly spread of the 4 lengths are too few to claim a trend"
        in few
    )
    assert "it falls" not in few
    exact = curve_said(
        lambda n: 3.0 / n if n < 20 else 2e-15
    )  # what is left does not fall any more
    assert (
        "from n = 20 on it is the rounding of float64 itself. The two representations are the same"
        in exact
    )
    assert "does not fall" not in exact


def test_falls_and_hidden_are_two_words_with_one_meaning_each() -> None:
    """A distance that stays what it is falls nowhere, and is hidden all the same where the noise is
    larger.
    """
    hides, falls, *_ = collapse_findings(made_collapse(lambda n: 3.0, noise={"bfloat16": 4.0}))
    assert hides.startswith(
        "bfloat16 hides the difference between n and n + 1 items of figure-5a: "
        "hidden from 1, the shortest tried, on, up to 128 "
    )
    assert "it does not fall" in falls
    assert not any("collapse" in sentence for sentence in (hides, falls))


def test_a_seed_apart_is_no_hidden_length() -> None:
    """10 / 30 is still above 0.33, 10 / 31 below."""
    result = made_collapse(lambda n: 10.0 / n, noise={"bfloat16": 0.33}, seeds=(0, 1))
    apart = (result.frame["seed"] == 1) & (result.frame["length"] > 100)
    result.frame.loc[apart, "float64_distance"] = 5.0
    assert "hidden from 31 to 100 (70 of the 70 lengths tried), apart again at 101" in " ".join(
        collapse_findings(result)
    )


def test_the_trend_is_of_the_trained_lengths_where_they_are_enough() -> None:
    """10 up to n = 32, 1 up to 64, then 100: a tenth inside, ten times as much beyond."""
    result = made_collapse(lambda n: 10.0 if n <= 32 else 1.0 if n <= 64 else 100.0)
    for trained, words in ((64, "falls on figure-5a (0.1, up to n = 64)"), (4, "")):
        model = {"name": "made", "trained_lengths": {"count-ones-figure-5": trained}}
        known = replace(result, provenance=replace(result.provenance, model=model))
        assert words in " ".join(summary := collapse_summary([known]))
        assert bool(summary) == bool(words)


def test_what_storing_shifts_is_not_noise() -> None:
    """Weights so stored have a distance of their own, and move both sequences alike: that hides
    nothing.
    """
    result = made_collapse(lambda n: 4.0, noise={"float32": 1e-9, "int8-weights": 1e-3})
    stored: Any = result.frame["dtype"] == "int8-weights"
    weights = np.where(stored, "int8-weights", "given")
    frame = result.frame.assign(weights=weights, weight_shift=np.where(stored, 9.0, 0.0))
    frame = frame.assign(float64_distance=np.where(stored, 2.0, 4.0))
    both = ost.measure.Collapse(frame, PROVENANCE)
    plain, int8 = tails(both).drop(columns=["dtype", "pair_noise"]).to_numpy().tolist()
    assert plain == pytest.approx([4.0, 0.0, 1e-9, 4e9])
    assert int8 == pytest.approx([2.0, 9.0, 1e-3, 2000])
    section = PRECISION.section(Measurements(PROVENANCE, "text", {"precision": [both]}))
    assert section is not None
    assert list(section.parts[0].tables[0].rows[1])[:4] == ["int8-weights", "2", "9", "0.001"]
    assert section.parts[0].findings == both.findings()
    assert (
        "int8-weights on figure-5a comes nearest, its distance 2,000 times the rounding noise"
        in both.findings()[0]
    )


# --- sensitivity


def test_an_estimate_is_not_called_measured_and_has_no_operator_norm() -> None:
    """Frobenius norms are twice the operator norms here."""
    made = made_sensitivity({"full": [1, 4, 2], "frozen": [1, 2, 2]})
    estimated = replace(made, frame=made.frame.assign(method="estimate"))
    said = " ".join(findings.sensitivity_findings(estimated))
    for words in ("Estimated, full: ", "Frobenius norm 8", "the estimated norm is"):
        assert words in said
    assert "easured" not in said
    assert "operator" not in said


def test_a_run_says_the_error_of_its_arithmetic_and_apart_from_it_that_of_sampling() -> None:
    def said(*runs: dict[str, Any], upper: tuple[float, float] = (1.0, 2.0)) -> str:
        made = made_sensitivity({"full": [1.0, 2.0]}, ["a", "b"])
        made = replace(
            made, frame=made.frame.assign(frobenius_lower=[1.0, 2.0], frobenius_upper=upper)
        )
        parameters = {"runs": {str(index): run for index, run in enumerate(runs)}}
        certified = replace(made, provenance=replace(made.provenance, parameters=parameters))
        return "".join(one for one in certified.findings() if one.startswith("Arithmetic"))

    exact, better = (
        {"certificate": {"error": share / 10, "within": share}} for share in (0.1, 0.002)
    )
    words = (
        "the norms of all tokens together may be off by up to {1} (95%); the network, moved a little, moves as its derivative "
        "says, to {0}."
    )
    assert said(exact, better) == f"Arithmetic: {words.format('1%', '10%')}"
    assert words.format("0.0002", "0.002") in said(better)
    sketch = said(better, upper=(1.4, 5.2))
    assert words.format("0.0002", "0.002") in sketch
    assert (
        "may be off by 25% to either side in the median (95%); 1 of 2 by more than 30%." in sketch
    )
    assert said() == ""


# --- bounds and predictions

PROFILE = np.array([1.0, 3.0, 2.0, 5.0, 4.0, 6.0])


def test_a_bound_below_a_norm_by_any_amount_fails_aloud_and_a_loose_one_is_no_size() -> None:
    def said(times: list[float]) -> str:
        (sentence,) = made_comparison(
            PROFILE.tolist(), {"windowed(1)": (PROFILE * times).tolist()}
        ).findings()
        return sentence

    assert said([10, 10, 0.999] + [10] * 3).startswith("CERTIFIED BOUNDS FAIL: windowed(1). ")
    assert "please report it" in said([10, 10, 0.999] + [10] * 3)
    assert (
        "`windowed(1)`, is 10^5.0 times the measured norm in the median over tokens, true and of no use"
        in said([1e5] * 6)
    )


@pytest.mark.parametrize("left_open", [0, 1])
def test_one_undecided_bound_is_in_the_headline(left_open: int) -> None:
    """Two bounds, of which one is open: not every one holds, whichever is the tightest; and a
    broken one goes before it.
    """
    made = made_comparison(
        [1.0, 2.0, 3.0], {"windowed(1)": [90.0] * 3, "local": [10.0, 20.0, 30.0]}
    )
    verdicts: list[object] = [True, True]
    verdicts[left_open] = pd.NA
    (said,) = replace(made, summary=made.summary.assign(holds=verdicts)).findings()
    assert "does not decide whether 1 of 2 certified bounds hold" in said
    assert "Every certified bound holds" not in said
    verdicts[1 - left_open] = False
    (said,) = replace(made, summary=made.summary.assign(holds=verdicts)).findings()
    assert f"CERTIFIED BOUNDS FAIL: {('local', 'windowed(1)')[left_open]}." in said


# --- answers


def test_the_study_takes_a_task_with_room_on_both_sides_by_log_probability_at_the_floor() -> None:
    def answers(
        task: str, right: int, likely: float, kind: str = "answered"
    ) -> ost.measure.Evaluation:
        rows = [
            {
                "length": n,
                "correct": n <= right,
                "kind": kind,
                "log_probability": likely,
                "number": None,
            }
            for n in range(1, 9)
        ]
        return made_evaluation(rows, task=task)

    always, often, never = (
        answers("copy", 8, -0.1),
        answers("sum-ones", 5, -1.0),
        answers("count-ones", 0, -3.0),
    )
    rarer, unread = answers("count-word", 0, -9.0), answers("copy-last", 0, -1.0, "cut off")
    assert task_with_room([always, often, never]) == "sum-ones"
    assert task_with_room([always, rarer, never, unread]) == "count-ones"
    with pytest.raises(ost.InputError, match="all are right, or none was read"):
        task_with_room([always, unread])


@pytest.mark.parametrize(
    ("lengths", "spread"),
    [
        (range(1, 33), list(range(1, 33))),
        (range(32, 289, 32), list(range(32, 289, 32))),
        ([*range(1, 9), 16, 32, 48, 64], [8, 16, 32, 48, 64]),
        ([4, 8, 16, 64], [16, 64]),
    ],
)
def test_a_trend_is_of_lengths_that_are_evenly_spread(
    lengths: list[int], spread: list[int]
) -> None:
    """By hand: half the widest gap is 0.5, 16, 8 and 24."""
    assert _evenly_spread(list(lengths)) == spread


def test_a_trend_is_the_last_quarters_median_over_the_firsts() -> None:
    """By hand, of n = 1 to 40 and 1 / n: medians of 31 to 40 and of 1 to 10."""
    _, change, _ = _trend(made_collapse(lambda n: 1.0 / n, lengths=range(1, 41)))
    last, first = (1 / 35 + 1 / 36) / 2, (1 / 5 + 1 / 6) / 2
    assert change == pytest.approx(last / first, rel=1e-12)


@pytest.mark.parametrize(
    ("lengths", "words"),
    [
        ([*range(1, 33), 64, 128, 256], "; 3 evenly spread of the 35 lengths are too few"),
        ([*range(1, 17), *range(24, 129, 8)], "last quarter of the 18 evenly spread of the 30"),
        (range(1, 41), "The median of the last quarter of the lengths is"),
        (range(1, 4), "; 3 lengths are too few to claim a trend."),
    ],
)
def test_a_trend_says_of_how_many_lengths_it_is(lengths: Any, words: str) -> None:
    assert words in curve_said(lambda n: 1.0 / n, lengths=lengths)


# --- where the prompt was read


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {},
            "the token from which the answer is predicted: '·' (position 40 at n = 4, position 48 at n = 8), in the chat "
            "template, with the answer line begun ('There are')",
        ),
        (
            {"position": "last-item", "tokens": ["1"], "places": [[5, 9], [5, 9]], "chat": False},
            "the last token of the sequence: '1' (position 9 at n = 5), in plain text",
        ),
    ],
)
def test_which_token_is_read(changes: dict[str, Any], words: str) -> None:
    assert where_read({"read_at": READ_AT | changes}) == f"y is that of {words}."
    assert where_read({"length": 3}) == ""


def test_what_is_predicted() -> None:
    rows = [(2 + index, 0, token) for index, token in enumerate(["The", "10", "10"])]
    said = where_read({"read_at": READ_AT, "next_tokens": rows})
    assert said.endswith("The next token here is '10' at 2, 'The' at 1 of 3 prompts.")
