"""Shares, ranks, shapes and ratios of profiles made by hand, and of a real model's."""

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import ostools as ost
from ostools.ground.errors import InputError
from ostools.measure import Sensitivity
from ostools.models import Prompt
from tests.checkpoints import refused, tiny_model
from tests.reporting.every import EVERY
from tests.reporting.made import PROVENANCE, made_sensitivity


def shape_of(result: ost.measure.Profile, kept: str, linearisation: str = "full") -> Any:
    shapes: Any = result.shapes
    return shapes[(shapes["kept"] == kept) & (shapes["linearisation"] == linearisation)].iloc[0]


def flat(count: int, seed: int = 0) -> np.ndarray:
    return 10.0 ** (0.2 * np.random.default_rng(seed).standard_normal(count))


def test_shares_with_and_without_the_sink() -> None:
    found: Any = ost.profile(made_sensitivity({"full": [5.0, 1.0, 1.5, 2.5]})).frame
    assert found["share"].tolist() == pytest.approx([0.5, 0.1, 0.15, 0.25])
    assert np.isnan(found["share_without_sink"][0])
    assert found["share_without_sink"].tolist()[1:] == pytest.approx([0.2, 0.3, 0.5])
    assert found["rank"].tolist() == [1, 4, 3, 2]


def test_the_summary_and_frozen_beside_full() -> None:
    result = ost.profile(
        made_sensitivity({"full": [2.0, 1.0, 3.0, 0.0], "frozen": [1.0, 2.0, 1.0, 0.0]})
    )
    full = result.summary.iloc[0]
    frame: Any = result.frame
    assert frame.loc[frame["linearisation"] == "full", "over_frozen"].tolist() == [
        2.0,
        0.5,
        3.0,
        1.0,
    ]
    assert (full["sink_share"], full["last_share"]) == pytest.approx((1 / 3, 0))


@pytest.mark.parametrize("name", ["Attention", "Attribution", "Profile"])
def test_a_result_says_and_draws_the_same_whatever_the_order_of_its_rows(name: str) -> None:
    result = EVERY[name]()
    for seed in range(3):
        shuffled = replace(result, frame=result.frame.sample(frac=1, random_state=seed))
        assert sorted(shuffled.findings()) == sorted(result.findings())
        drawn = [json.dumps(one.plot().to_dict(), sort_keys=True) for one in (shuffled, result)]
        assert sorted(re.findall(r"\d+\.\d+", drawn[0])) == sorted(
            re.findall(r"\d+\.\d+", drawn[1])
        )


def test_a_profile_is_of_places_and_of_every_token_once() -> None:
    measured: Any = EVERY["Sensitivity"]()
    expected = ost.profile(measured)
    by_size = replace(measured, frame=measured.frame.sort_values("operator_norm"))
    for table in ("frame", "summary", "shapes"):
        keys = [
            name
            for name in ("linearisation", "position", "kept")
            if name in getattr(expected, table)
        ]
        tables = [
            getattr(one, table).sort_values(keys, ignore_index=True)
            for one in (expected, ost.profile(by_size))
        ]
        pd.testing.assert_frame_equal(*tables)
    frame = measured.frame
    for other in (frame[frame["position"] > 0], pd.concat([frame, frame])):
        with pytest.raises(
            InputError, match=r"expected each token once in|expected one row for each"
        ):
            ost.profile(replace(measured, frame=other))


def test_tables_that_are_not_whole_are_refused() -> None:
    attention: Any = EVERY["Attention"]()
    attribution: Any = EVERY["Attribution"]()
    for frame in (attention.frame[1:], pd.concat([attention.frame[1:], attention.frame[1:2]])):
        with pytest.raises(InputError, match=r"expected (the 28 rows|one row for each)"):
            replace(attention, frame=frame)
    with pytest.raises(InputError, match="attribution: expected one row for the biases"):
        replace(attribution, frame=attribution.of_tokens).findings()


def test_a_share_of_nothing_is_not_below_0() -> None:
    values = [0.0, *(flat(40) / 3)]
    frame = made_sensitivity({"full": values}).frame.assign(origin=["special"] + ["text"] * 40)
    assert (
        "the 1 that are not the text's have 0.0%." in Sensitivity(frame, PROVENANCE).findings()[0]
    )


def test_top_is_by_rank_and_keeps_the_linearisations_apart() -> None:
    result = ost.profile(made_sensitivity({"full": [1.0, 2.0, 9.0], "frozen": [7.0, 2.0, 1.0]}))
    assert result.top(2)["position"].tolist() == [2, 1]
    for rows in (result.frame[::-1], result.frame.sample(frac=1.0, random_state=1)):
        pd.testing.assert_frame_equal(replace(result, frame=rows).top(), result.top())
    assert result.top(1, linearisation="frozen")["position"].tolist() == [0]
    refused("did you mean 'frozen'", result.top, linearisation="frozn")


def test_a_planted_u_is_one_with_and_without_its_ends() -> None:
    values = flat(120) * 10.0 ** (2 * np.linspace(-1, 1, 120) ** 2)
    result = ost.profile(made_sensitivity({"full": list(values)}))
    for kept in ("all", "without the sink", "without sink and last"):
        row = shape_of(result, kept)
        assert row["verdict"] == "U-shape"
        assert 0 < row["start_contrast_low"] < row["start_contrast"] < row["start_contrast_high"]
        assert row["end_contrast_p"] < 0.05
    one: Any = shape_of(result, "without the sink")
    assert one["start"] == pytest.approx(np.log10(values[1:41]).mean(), abs=0.02)


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        (flat(12), "not tested: 11 tokens, 12 needed"),
        (
            np.where(np.arange(90) < 7, 0.0, flat(90)),
            "not tested: 6 of 89 tokens have sensitivity 0",
        ),
    ],
)
def test_where_there_is_nothing_to_test_the_verdict_says_so(
    values: np.ndarray, verdict: str
) -> None:
    row = shape_of(ost.profile(made_sensitivity({"full": list(values)})), "without the sink")
    assert row["verdict"] == verdict
    assert np.isnan(row["start_contrast"])


def test_an_estimate_is_read_by_its_frobenius_norm() -> None:
    measured = made_sensitivity({"full": [1.0, 2.0]})
    found = ost.profile(
        ost.measure.Sensitivity(measured.frame.assign(method="estimate"), PROVENANCE)
    ).frame
    assert set(ost.profile(measured).frame["norm"]) == {"operator"}
    assert (set(found["norm"]), set(found["method"])) == ({"frobenius"}, {"estimate"})
    assert found["share"].tolist() == pytest.approx([1 / 3, 2 / 3])
    with pytest.raises(ost.InputError, match="expected the sensitivity to the embeddings, layer 0"):
        ost.profile(ost.measure.Sensitivity(measured.frame.assign(layer=2), PROVENANCE))


def test_a_model_whose_windows_do_not_reach_the_start() -> None:
    """Two sliding layers of 3 keys reach 2 * 2 tokens back: everything before has sensitivity
    exactly 0.
    """
    model = tiny_model(
        "gemma2", window=3, d_model=16, d_mlp=24, layer_types=["sliding_attention"] * 2
    )
    measured = ost.sensitivity(model, ost.Prompt.from_ids(model, [2, *range(40, 104)]))
    result = ost.profile(measured)
    frame: Any = result.frame
    assert (frame.loc[frame["position"] < 60, "share"] == 0).all()
    assert (frame.loc[frame["position"] >= 60, "share"] > 0).all()
    assert shape_of(result, "all")["verdict"] == "not tested: 60 of 65 tokens have sensitivity 0"
    assert (frame.loc[frame["position"] < 60, "over_frozen"] == 1.0).all()
    assert replace(result.provenance, rows={}) == measured.provenance


def test_sentences_and_pictures_name_the_layer_where_it_is_not_the_embeddings() -> None:
    model = tiny_model("llama")
    prompt = Prompt.from_ids(model, [2, *range(40, 48)])
    embeddings, one, both = (
        ost.sensitivity(model, prompt, linearisations="full", layers=layers)
        for layers in ([0], [1], [1, 2])
    )
    several = ost.sensitivity(model, [prompt, prompt], linearisations="full", layers=[1])
    for result in (one, both, several, ost.compare(one, one)):
        assert "at layer 1" in result.findings()[0]
        assert re.search("at layers? 1", str(result.plot().to_dict()["title"]))
    assert "Layer 0: the embeddings" not in str(both.plot().to_dict())
    assert "layer" not in embeddings.findings()[0] + str(embeddings.plot().to_dict()["title"])
