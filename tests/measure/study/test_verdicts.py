"""Effects and verdicts on made-up pairs: by hand, clustered by length, and rarely wrong where there
is nothing; which cotangents and tokens a sensitivity is of, and when a pair is active.
"""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import ostools as ost
from ostools.measure.study import arms
from ostools.measure.study import verdicts as judging
from ostools.measure.study.verdicts import corrected, effects, verdicts
from ostools.results import Provenance
from ostools.theory.statistics.answers import paired_difference
from tests.checkpoints import tiny_model

LEVEL = 0.95
WIDE = corrected(LEVEL, 4)


def pairs(
    quantity: str = "collapse_distance",
    lengths: Any = range(1, 21),
    seeds: Any = (0,),
    **columns: Any,
) -> Any:
    """Rows of one mitigation; `value` and `baseline` may be functions of length and seed."""
    made = {
        "mitigation": "m",
        "dtype": "float64" if quantity == "collapse_distance" else None,
        "quantity": quantity,
    }
    made |= {
        "kind": "measured",
        "value": 1.0,
        "baseline": 1.0,
        "rounding": 0.0,
        "status": "active",
        "reason": "",
    }
    made |= {"within_training": True} | columns
    return pd.DataFrame(
        [
            {name: each(n, seed) if callable(each) else each for name, each in made.items()}
            | {"length": n, "seed": seed}
            for n in lengths
            for seed in seeds
        ]
    )


def judged(*given: Any, **columns: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The effect and the verdict on `pairs` of these arguments."""
    found = effects(pairs(*given, **columns), LEVEL, WIDE)
    return found.to_dict("records")[0], verdicts(found, WIDE).to_dict("records")[0]


def test_all_verdicts_hold_together_by_bonferroni() -> None:
    assert corrected(LEVEL, 16) == pytest.approx(1 - 0.05 / 16)


def noisy(seed: int, scale: float = 0.1) -> Any:
    draws = np.random.default_rng(seed).normal(0, scale, (200, 9))
    return lambda n, s: draws[n, s]


def test_seeds_of_a_length_stay_together() -> None:
    """The same question asked again is no new evidence."""
    noise = noisy(1)
    once, often = (judged(seeds=range(k), value=lambda n, s: 10 ** noise(n, 0))[0] for k in (1, 8))
    for name in ("effect", "low", "high", "verdict_low", "verdict_high"):
        assert often[name] == pytest.approx(once[name], abs=1e-12)


@pytest.mark.parametrize(("sign", "verdict"), [(1, "larger"), (-1, "smaller"), (0, "not decided")])
@pytest.mark.parametrize("quantity", ["collapse_distance", "sensitivity"])
def test_the_sign_of_a_verdict(sign: int, verdict: str, quantity: str) -> None:
    noise = noisy(2)
    about = judging.ABOUT_BY_QUANTITY[quantity]
    _, said = judged(quantity, value=lambda n, s: 10 ** (sign * 0.2 + noise(n, s)))
    assert said[about] == verdict


def test_too_few_lengths_for_a_verdict() -> None:
    """Five lengths, all better: that is nothing rare enough for four verdicts at 95%; eight are."""
    row, said = judged(lengths=range(1, 7), value=2.0)
    assert row["low"] > 0
    assert np.isnan(row["verdict_low"])
    assert "on 6 lengths, and a verdict needs 8" in said["sentence"]
    row, said = judged(lengths=range(1, 6), value=2.0)
    assert np.isnan(row["low"])
    assert said["collapse"] == "not decided"
    assert "on 5 lengths, and a verdict needs 8" in said["sentence"]
    assert judged(lengths=range(1, 9), value=2.0)[1]["collapse"] == "larger"


@pytest.mark.parametrize(
    ("quantity", "margin"),
    [
        ("correct", 0.05),
        ("log_probability", 0.1),
        ("collapse_distance", 0.0414),
        ("sensitivity", 0.0414),
    ],
)
def test_none_is_measurable_only_where_the_whole_interval_is_small(
    quantity: str, margin: float
) -> None:
    """Both ends within the margin, and one a little outside; 0 inside the interval is not enough."""
    about = judging.ABOUT_BY_QUANTITY[quantity]
    row, _ = judged(quantity, value=0.5, baseline=0.5)
    for low, high, verdict in (
        (-margin * 0.99, margin * 0.99, "no measurable effect"),
        (-margin * 1.01, margin * 0.5, "not decided"),
        (-margin * 0.5, margin * 1.01, "not decided"),
        (0.0, 0.78, "not decided"),
    ):
        made = pd.DataFrame([row | {"verdict_low": low, "verdict_high": high, "p_value": 1.0}])
        assert verdicts(made, WIDE)[about].tolist() == [verdict]


def test_answers_that_change_alike_have_an_exact_interval() -> None:
    """Every bootstrap of 20 equal effects is empty; 20 questions of which none changed leave room
    for 1 - (a / 2)^(1 / 20).
    """
    for value, baseline, low, high in (
        (0.0, 0.0, 0.025 ** (1 / 20) - 1, 1 - 0.025 ** (1 / 20)),
        (1.0, 0.0, *paired_difference(20, 0, 20)),
        (0.0, 1.0, *paired_difference(0, 20, 20)),
    ):
        row, _ = judged("correct", value=value, baseline=baseline)
        assert (row["low"], row["high"]) == pytest.approx((low, high), rel=1e-12)
    row, _ = judged(
        "correct",
        seeds=range(4),
        value=lambda n, s: float(s < 2),
        baseline=lambda n, s: float(0 < s < 3),
    )
    assert (row["low"], row["high"]) == paired_difference(
        20, 20, 80
    )  # a question gained and one lost at every length
    assert (
        judged("log_probability", value=1.0, baseline=1.0)[1]["log_probability"]
        == "no measurable effect"
    )


@pytest.mark.parametrize("sign", [1, -1])
def test_the_p_value_alone_decides(sign: int) -> None:
    """Seven effects of 1 and one of -0.01: the interval leaves 0 out, and 4 of 256 sign patterns
    are as extreme.
    """
    made = [1.0] * 7 + [-0.01]
    row, said = judged(lengths=range(1, 9), value=lambda n, s: 10 ** (sign * made[n - 1]))
    assert row["verdict_low"] * row["verdict_high"] > 0
    assert row["p_value"] == 4 / 256 > 1 - WIDE
    assert said["collapse"] == "not decided"
    assert "]; the interval excludes zero, a sign-flip test did not conf" in said["sentence"]
    for columns in (
        {"verdict_low": -0.1, "verdict_high": 0.1},
        {"baseline_floored": 8},
    ):  # a bound has no interval
        assert "sign-flip" not in verdicts(pd.DataFrame([row | columns]), WIDE)["sentence"][0]


@pytest.mark.parametrize("sign", [1, -1])
def test_the_interval_alone_decides(sign: int) -> None:
    """An effect in every row of a table of verdicts, whose p-value is clear and whose interval
    holds 0.
    """
    row, said = judged(value=lambda n, s: 10**sign)
    assert said["collapse"] == ("larger" if sign > 0 else "smaller")
    assert row["p_value"] <= 1 - WIDE
    end = "verdict_low" if sign > 0 else "verdict_high"
    for value in (-0.01 * sign, 0.0):
        assert verdicts(pd.DataFrame([row | {end: value}]), WIDE)["collapse"].tolist() == [
            "not decided"
        ]


def test_what_changed_nothing_is_no_evidence() -> None:
    assert judged("correct", status="inactive")[1]["answers"] == "inactive"
    some = {"value": lambda n, s: 3.0, "status": lambda n, s: "inactive" if n < 10 else "active"}
    row, said = judged("sensitivity", **some)
    assert (row["lengths"], row["inactive"], said["sensitivity"]) == (11, 9, "larger")
    row, said = judged(status="refused", value=float("nan"), reason="ends in its sequence")
    assert (row["refused"], row["pairs"], said["collapse"]) == (20, 0, "not decided")
    assert "distance of the pair: not decided (ends in its sequence)" in said["sentence"]


@pytest.mark.parametrize(
    ("value", "baseline", "verdict", "words"),
    [
        (
            1.0,
            1.0,
            "not decided",
            "(20 of 20 right without it: no question could be gained; +0.0 points, of further "
            "questions [-22.4, +22.4])",
        ),
        (0.0, 1.0, "hurts", "no question could be gained; -100.0 points"),
        (
            0.0,
            0.0,
            "not decided",
            "(0 of 20 right without it: no question could be lost; +0.0 points, of further "
            "questions [-22.4, +22.4])",
        ),
        (1.0, 0.0, "helps", "no question could be lost; +100.0 points"),
    ],
)
def test_nothing_to_gain_where_all_is_right(
    value: float, baseline: float, verdict: str, words: str
) -> None:
    _, said = judged("correct", value=value, baseline=baseline)
    assert said["answers"] == verdict
    assert words in said["sentence"]


def test_lengths_beyond_training_decide_nothing_unless_there_are_no_others() -> None:
    columns: Any = {
        "value": lambda n, s: 5.0 if n > 10 else 1.0,
        "within_training": lambda n, s: n <= 10,
    }
    row, said = judged(**columns)
    assert (row["effect"], row["lengths"], row["beyond_training"]) == (0, 10, False)
    assert said["collapse"] == "no measurable effect"
    row, said = judged(lengths=range(11, 21), **columns)
    assert (row["lengths"], row["beyond_training"], said["collapse"]) == (10, True, "larger")
    assert "every length is beyond the trained ones" in said["sentence"]
    columns["status"] = lambda n, s: "inactive" if n <= 10 else "active"
    _, said = judged(**columns)
    assert "pair: inactive (it changed nothing within training)" in said["sentence"]


def test_a_ratio_to_rounding_is_none() -> None:
    """0 against 1e-9 where 1e-6 is rounding is no difference; 0 against 1 is a factor of at least a
    million.
    """
    for value, baseline, verdict, floored, words in (
        (0.0, 1e-9, "not decided", (20, 20), ""),
        (0.0, 1.0, "smaller", (20, 0), "distance of the pair: smaller (at most ×1.0e-6)."),
        (
            1.0,
            lambda n, s: 0.0 if n < 4 else 1e-3,
            "larger",
            (0, 3),
            "distance of the pair: larger (at least ×",
        ),
        (0.0, 0.0, "not decided", (20, 20), "not decided (rounding on both sides, ×1)"),
    ):
        row, said = judged(value=value, baseline=baseline, rounding=1e-6)
        assert said["collapse"] == verdict
        assert (row["value_floored"], row["baseline_floored"]) == floored
        assert words in said["sentence"]
        assert "[" not in said["sentence"] or verdict != "larger"
    assert judged(value=0.0, baseline=1.0, rounding=1e-6)[0]["effect"] == pytest.approx(-6)


def test_floors_are_the_larger_of_the_two_and_of_the_largest_token() -> None:
    """A ratio's floor is the larger rounding of its sides; a mean's is the rounding of the largest
    norm, not of its own.
    """
    key = {"quantity": "collapse_distance", "dtype": "float64", "length": 4, "seed": 0}
    about = {"kind": "measured", "status": "active", "reason": ""}
    for with_it, without in ((2e-7, 5e-7), (5e-7, 2e-7)):
        arm, plain = (
            pd.DataFrame([key | about | {"value": value, "rounding": rounding}])
            for value, rounding in ((1.0, with_it), (3.0, without))
        )
        (row,) = arms.paired_rows(arm, plain).to_dict("records")
        assert (row["value"], row["baseline"], row["rounding"]) == (1.0, 3.0, 5e-7)
    norms: Any = pd.DataFrame({"position": range(4), "norm": [0.0, 8.0, 0.0, 4.0]})
    assert arms.mean_at(norms, "norm", [0, 2]) == (0.0, 8.0 * torch.finfo(torch.float32).eps)


def test_each_number_stands_beside_that_of_the_same_question() -> None:
    """Not beside the neighbouring length's or seed's, whatever order the rows are in."""
    arm = pairs(lengths=(2, 3, 4), seeds=(0, 1), value=lambda n, seed: 10.0 * n + seed).drop(
        columns="baseline"
    )
    plain = arm.assign(value=arm["value"] + 0.5)[
        [*arms.KEYS, "value", "status", "reason", "rounding"]
    ]
    both = arms.paired_rows(arm, plain.sample(frac=1.0, random_state=1))
    assert (both["baseline"] - both["value"]).tolist() == [0.5] * 6
    assert both["value"].tolist() == [20.0, 21.0, 30.0, 31.0, 40.0, 41.0]


TASK = ost.tasks.AppendixTask("copy-last")
SMALL: dict[str, Any] = {"d_model": 16, "n_heads": 2, "n_key_value_heads": 1, "d_mlp": 16}


def test_a_sketch_is_drawn_by_the_length_and_is_the_mean_over_the_tokens_that_carry_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, seeds = tiny_model("llama", seed=1, context=768, **SMALL), []

    def norms(_: Any, prompt: Any, *, seed: int, **how: Any) -> Any:
        seeds.append(seed)
        positions = range(len(prompt.ids))
        frame = pd.DataFrame({"position": positions, "frobenius_norm": [p**2 for p in positions]})
        return ost.measure.PositionEffect(frame, Provenance.without_model())

    monkeypatch.setattr(arms, "sensitivity", norms)
    monkeypatch.setattr(arms, "choose_method", lambda d_model, exact_fits: ("sketch", ""))
    how: dict[str, Any] = {"measures": ["sensitivity"], "sensitivity_lengths": 2, "chat": False}
    task = ost.tasks.AppendixTask("count-ones")
    found = ost.study(model, task, mitigations=[ost.mitigations.Hint()], lengths=[2, 5], **how)
    assert sorted(seeds) == [2, 2, 5, 5]
    rows: Any = found.frame.query("quantity == 'sensitivity'")
    assert rows["length"].tolist() == [2, 5]
    for length, value in zip(rows["length"], rows["baseline"], strict=True):
        carriers = ost.measure.carrier_positions(
            model, ost.measure.render_prompt(model, task, length, chat=False)
        )
        assert len(carriers) == length
        assert value == pytest.approx(sum(p**2 for p in carriers) / length)


def test_a_pair_is_active_where_its_longer_question_alone_is_changed() -> None:
    model = tiny_model("llama", seed=1, context=768, **SMALL)
    lengths = [ost.measure.render_prompt(model, TASK, n, chat=False).tokens for n in (2, 3)]
    assert lengths[1] > lengths[0]
    how: dict[str, Any] = {"measures": ["collapse"], "dtypes": ["bfloat16"], "chat": False}
    how |= {"position": "prompt-end"}
    for window, status in ((lengths[0], "active"), (lengths[1], "inactive")):
        found = ost.study(
            model, TASK, mitigations=[ost.mitigations.SlidingWindow(window)], lengths=[2], **how
        )
        rows: Any = found.frame.query("mitigation != 'none' and dtype == 'float64'")
        assert rows["status"].tolist() == [status], window
