"""Do collapse and sensitivity predict errors? Planted tables whose answer is known, and real models against their parts."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
import torch

import ostools as ost
from ostools.experiments import ErrorPrediction, error_prediction
from ostools.experiments.error_prediction import DISTANCES, regress, summarise
from ostools.ground.errors import InputError
from ostools.measure.posed import carrier_positions, pose
from ostools.models import view_in
from ostools.reporting.findings.error_prediction import error_prediction_findings
from ostools.results import Provenance, frame_of
from ostools.tasks import task
from ostools.theory.statistics.logistic import odds_ratio
from tests.checkpoints import tiny_model, trained

ONE = ["distance_y"]


def planted(value: Any, right: Any, seeds: int = 12, lengths: tuple[int, ...] = (4, 8, 12, 16)) -> pd.DataFrame:
    """A table of prompts: value(length, seed) is the distance, right(length, seed) the outcome."""
    rows = [
        {"task": "made", "length": n, "seed": seed, "key": "1", "kind": "answered"}
        | {"distance_y": float(value(n, seed)), "correct": bool(right(n, seed))}
        for n in lengths
        for seed in range(seeds)
    ]
    return pd.DataFrame(rows)


def told(frame: pd.DataFrame) -> dict[str, Any]:
    return {str(row["compared"]): row for row in summarise(frame, ONE).to_dict("records")}


def test_values_that_separate_right_from_wrong_are_said_to() -> None:
    found = told(planted(lambda n, s: s, lambda n, s: s >= 6))
    for compared, pairs in (("all prompts", 24 * 24), ("same length", 4 * 36)):
        row = found[compared]
        assert (row["area"], row["high"], row["pairs"]) == (1, 1, pairs)
        assert row["low"] > 0.5
        assert (row["verdict"], row["why"]) == ("larger where right", "")
    found = told(planted(lambda n, s: -s, lambda n, s: s >= 6))
    assert {row["verdict"] for row in found.values()} == {"smaller where right"}


def test_what_only_the_length_explains_is_seen_over_all_prompts_and_not_within_a_length() -> None:
    """Both the distance and the outcome follow the length, and nothing else of each other."""
    noise = np.random.default_rng(3).random((2, 20, 40))
    frame = planted(lambda n, s: 1 / n + 1e-3 * noise[0, n, s], lambda n, s: noise[1, n, s] > (n - 2) / 16, seeds=40)
    found = told(frame)
    assert found["all prompts"]["verdict"] == "larger where right"
    assert found["same length"]["verdict"] == "no relation seen"
    assert found["same length"]["low"] < 0.5 < found["same length"]["high"]


def odds(frame: pd.DataFrame) -> dict[str, Any]:
    (row,) = regress(frame, ONE).to_dict("records")
    return row


def test_the_odds_ratio_is_that_of_log_distance_beside_log_length() -> None:
    noise = np.random.default_rng(4).random((2, 20, 12))
    chance = {n: 0.8 - n / 40 for n in (4, 8, 12, 16)}
    frame = planted(
        lambda n, s: noise[0, n, s] / n, lambda n, s: noise[1, n, s] < chance[n] + 1.5 * (noise[0, n, s] - 0.5)
    )
    row, logs = odds(frame), np.log10(frame["distance_y"].to_numpy())
    found = odds_ratio(
        frame["distance_y"].to_numpy(),
        frame["correct"].to_numpy(dtype=bool),
        frame["seed"].to_numpy(),
        frame["length"].to_numpy(dtype=float),
        level=1 - 0.05 / 3,
    )
    assert (row["low"], row["odds_ratio"], row["high"]) == (found.low, found.value, found.high)
    assert (row["verdict"], row["why"], row["held"], row["seeds"]) == ("larger where right", "", "log10 length", 12)
    assert row["spread"] == pytest.approx(logs.std(ddof=1))
    assert row["level"] == told(frame)["all prompts"]["level"] == 1 - 0.05 / 3
    turned = odds(frame.assign(distance_y=1 / frame["distance_y"]))
    assert turned["verdict"] == "smaller where right"
    alone: Any = frame[frame["length"] == 8]
    assert odds(alone)["held"] == "nothing"


def test_what_only_the_length_explains_changes_no_odds() -> None:
    noise = np.random.default_rng(3).random((2, 20, 40))
    frame = planted(lambda n, s: 1 / n + 1e-1 * noise[0, n, s], lambda n, s: noise[1, n, s] > (n - 2) / 16, seeds=40)
    row = odds(frame)
    assert (row["verdict"], row["held"]) == ("no relation seen", "log10 length")
    assert row["low"] < 1 < row["high"]


def test_an_odds_ratio_that_there_is_not_says_why_in_words_of_prompts() -> None:
    cases: list[tuple[pd.DataFrame, str]] = [
        (
            planted(lambda n, s: s + 1, lambda n, s: s >= 6),
            "a threshold tells the outcomes apart: the odds ratio has no end",
        ),
        (planted(lambda n, s: s, lambda n, s: s >= 6), "value not above 0 in 4 of 48 prompts: it has no logarithm"),
        (planted(lambda n, s: 0.25, lambda n, s: s % 2), "the value is the same in every prompt"),
        (planted(lambda n, s: n**-1.5, lambda n, s: s % 2), "the value follows from the length"),
        (planted(lambda n, s: s + 1, lambda n, s: s % 2, seeds=7), "too few seeds: 7, it takes 8"),
        (planted(lambda n, s: s + 1, lambda n, s: s % 4 == 2), "too few seeds hold the rarer outcome: 3, it takes 5"),
        (planted(lambda n, s: s + 1, lambda n, s: True), "all 48 answers are right"),
        (planted(lambda n, s: s + 1, lambda n, s: True).assign(kind="cut off"), "there is no answer with a value"),
    ]
    for frame, why in cases:
        row = odds(frame)
        assert (row["verdict"], row["why"]) == ("could not be tested", why)
        assert np.isnan([row["low"], row["odds_ratio"], row["high"]]).all()


def test_a_constant_distance_predicts_nothing() -> None:
    for row in told(planted(lambda n, s: 0.25, lambda n, s: s % 2)).values():
        assert row["area"] == 0.5
        assert row["verdict"] == "no relation seen"


def test_what_could_not_be_tested_says_why() -> None:
    for right, word in ((True, "right"), (False, "wrong")):
        for row in told(planted(lambda n, s: s, lambda n, s: right)).values():  # noqa: B023
            assert (row["verdict"], row["why"]) == ("could not be tested", f"all 48 answers are {word}")
            assert np.isnan(row["area"])
    found = told(planted(lambda n, s: s, lambda n, s: n > 8))
    assert found["all prompts"]["area"] == 0.5
    assert found["same length"]["why"] == "at no length are some answers right and others wrong"
    few = told(planted(lambda n, s: s, lambda n, s: s >= 2, seeds=4))["same length"]
    assert (few["area"], few["verdict"]) == (1, "no interval")
    assert few["why"] == "too few seeds for an interval: 4"


def test_prompts_without_an_answer_are_left_out_and_counted() -> None:
    frame = planted(lambda n, s: s, lambda n, s: s >= 6)
    frame.loc[frame["seed"] == 0, "kind"] = "cut off"
    frame.loc[frame["seed"] == 11, "distance_y"] = np.nan
    row = told(frame)["all prompts"]
    assert (row["right"], row["wrong"], row["left_out"]) == (20, 20, 8)
    (row, _) = summarise(frame.assign(kind="something else"), ONE).to_dict("records")
    assert (row["verdict"], row["why"]) == ("could not be tested", "there is no answer with a value")


def made(frame: pd.DataFrame) -> ErrorPrediction:
    result = ErrorPrediction(frame, Provenance.without_model(), summarise(frame, ONE), regress(frame, ONE))
    return replace(result, provenance=replace(result.provenance, model={"name": "made"}))


def test_sentences_and_chart_say_the_same() -> None:
    result = made(planted(lambda n, s: s, lambda n, s: s >= 6))
    said = " ".join(error_prediction_findings(result))
    assert "Distance at y. all prompts: area 1 of 576 pairs" in said
    assert "larger where right" in said
    assert "48 prompts, 4 lengths, 12 seeds: 24 right, 24 wrong." in said
    text = str(result.plot().to_dict())
    assert "area under the ROC curve" in text
    assert "48 prompts, 4 lengths, 12 seeds" in text
    assert "logistic regression: could not be tested, value not above 0 in 4 of 48 prompts" in said
    assert "odds ratio of one" not in text
    noise = np.random.default_rng(4).random((20, 12))
    both = made(planted(lambda n, s: noise[n, s], lambda n, s: noise[n, s] > noise[n - 1, s]))
    row: Any = both.odds.iloc[0]
    assert f"logistic regression: odds ratio {row['odds_ratio']:.2g}" in " ".join(error_prediction_findings(both))
    assert "odds ratio of one standard deviation" in str(both.plot().to_dict())
    nothing = made(planted(lambda n, s: s, lambda n, s: True))
    assert "could not be tested: all 48 answers are right" in " ".join(error_prediction_findings(nothing))
    assert "area under" not in str(nothing.plot().to_dict())


def last_token(model: Any, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The last token behind the final norm, and before it."""
    seen: list[torch.Tensor] = []
    own = model.original_model.model
    hook = own.norm.register_forward_hook(lambda module, given, found: seen.append(given[0]))
    try:
        with torch.no_grad():
            found = own(ids[None]).last_hidden_state
    finally:
        hook.remove()
    return found[0, -1], seen[0][0, -1]


@pytest.mark.slow
def test_every_number_is_that_of_its_own_measurement() -> None:
    model = tiny_model("llama", seed=1, context=512)
    found = error_prediction(model, "copy-last:uniform=true", lengths=[3, 5], seeds=[0, 4], max_new_tokens=8)
    frame: Any = found.frame
    alone: Any = ost.behaviour(
        model, "copy-last:uniform=true", lengths=[3, 5], seeds=[0, 4], max_new_tokens=8, probability=False
    ).frame
    for name in ("length", "seed", "key", "text", "kind", "correct"):
        assert frame[name].tolist() == alone[name].tolist()
    form, exact = task("copy-last:uniform=true"), view_in(model, torch.float64)
    for row in frame.to_dict("records"):
        posed, longer = (pose(model, form, row["length"] + more, seed=row["seed"]) for more in (0, 1))
        # Hugging Face's own: its last hidden state is y, behind the final norm; what goes into that norm is v^(L).
        y, norm_in = zip(*(last_token(exact, one.prompt.ids) for one in (posed, longer)), strict=True)
        for name, (v, v_star) in (("distance_y", y), ("distance_residual", norm_in)):
            # Rotary angles are float32, whatever the model is cast to.
            assert row[name] == pytest.approx(float((v - v_star).norm() / v.norm()), rel=1e-5)
        norms = ost.sensitivity(model, posed.prompt, linearisations=("full",)).frame["frobenius_norm"].to_numpy()
        (place,) = carrier_positions(model, posed)
        assert row["sensitivity"] == pytest.approx(norms[place], rel=1e-6)
        assert row["sensitivity_share"] == pytest.approx(norms[place] / norms.sum(), rel=1e-6)
    assert set(found.summary["predictor"]) == {*DISTANCES, "sensitivity", "sensitivity_share"}
    assert found.odds["predictor"].tolist() == [*DISTANCES, "sensitivity", "sensitivity_share"]
    assert found.provenance.parameters["seeds"] == [0, 4]
    assert found.provenance.parameters["linearisation"] == "full"


def test_without_a_sensitivity_none_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[error_prediction.__module__], "sensitivity", None)
    told: list[tuple[int, int]] = []
    found = error_prediction(
        tiny_model("llama", seed=1, context=512),
        "count-ones",
        lengths=[3],
        linearisation=None,
        max_new_tokens=4,
        progress=lambda *now: told.append(now),
    )
    assert set(found.summary["predictor"]) == set(DISTANCES)
    assert not set(found.frame) & {"sensitivity", "method"}
    assert told[-1] == (100, 100)


def test_refuses() -> None:
    model = tiny_model("llama", seed=1, context=512)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"task": "count-ones", "seeds": [0, 1]}, "draws nothing at random"),
        ({"task": "copy", "chat": False}, "text after its sequence"),
        ({"linearisation": "frosen"}, "unknown linearisation 'frosen': did you mean 'frozen'"),
        ({"lengths": [0]}, "at least 1"),
        ({"method": "bogus", "linearisation": None}, "unknown method 'bogus'.*auto, estimate, exact"),
    ]
    for options, words in refused:
        with pytest.raises(InputError, match=words):
            error_prediction(model, **({"lengths": [3], "max_new_tokens": 4} | options))


@pytest.mark.slow
def test_on_trained_models_every_verdict_is_one_of_the_known() -> None:
    """Numbers of weights that may be trained again are no law; that right and wrong add up is."""
    for name, lengths, seeds in (("embedded", [8, 24], range(10)), ("stories", [4], range(2))):
        found = error_prediction(
            trained(name), "count-ones-bernoulli", lengths=lengths, seeds=seeds, linearisation=None
        )
        frame, summary = frame_of(found), cast(Any, found.summary)
        assert (summary["right"] + summary["wrong"] + summary["left_out"]).tolist() == [len(frame)] * len(summary)
        tested = summary[summary["low"].notna()]
        assert ((tested["low"] <= tested["area"]) & (tested["area"] <= tested["high"])).all()
        found.plot().to_dict()
