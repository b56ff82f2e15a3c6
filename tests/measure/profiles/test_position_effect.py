"""The position effect: thirds of rotated passages, from which each token's own size falls out."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ostools import InputError
from ostools.measure.profiles.position_effect import NATURAL, PositionEffect, position_effect
from ostools.reporting.findings.effects import contrast_words
from ostools.results import Provenance
from tests.checkpoints import refused, tiny_model

MIDDLE = "middle"


def made(by_position: np.ndarray, token_sizes: np.ndarray, source: str = "model") -> PositionEffect:
    """A result whose log10 norms are a token's size plus an effect of the position; `token_sizes`:
    passages x tokens.
    """
    n = len(by_position)
    rows = []
    for passage, sizes in enumerate(token_sizes):
        for rotation in range(3):
            places = np.arange(n)
            tokens = (places + rotation * n // 3) % n
            where = {
                "source": source,
                "passage": passage,
                "rotation": rotation,
                "text_position": tokens,
            }
            where |= {"third": np.repeat(["start", MIDDLE, "end"], n // 3), "position": places}
            rows.append(pd.DataFrame(where | {"norm": 10.0 ** (sizes[tokens] + by_position)}))
    return PositionEffect(pd.concat(rows, ignore_index=True), Provenance.without_model())


def test_the_size_of_a_token_falls_out() -> None:
    """Sizes a thousand times the effect leave the contrasts equal to the effect's own, and their
    intervals a point.
    """
    effect = np.concatenate([np.full(4, 0.25), np.zeros(4), np.full(4, 0.5)])
    sizes = np.random.default_rng(0).normal(scale=3.0, size=(5, 12))
    row: Any = made(effect, sizes).contrasts.iloc[0]
    assert row["start"] == pytest.approx(0.25, abs=1e-9)
    assert row["end"] == pytest.approx(0.5, abs=1e-9)
    assert row["start_high"] - row["start_low"] == pytest.approx(0.0, abs=1e-9)
    assert row["shape"] == "U-shape"
    assert contrast_words(made(effect, sizes)) == [
        "The model: first third 1.78× [1.78, 1.78], last third 3.16× [3.16, 3.16]."
    ]


def test_a_third_of_equal_tokens_is_no_effect_of_position() -> None:
    """The paper's prompts: the middle third holds tokens of little size, whatever stands there."""
    sizes = np.tile(np.concatenate([np.zeros(4), np.full(4, -2.0), np.zeros(4)]), (5, 1))
    assert made(np.zeros(12), sizes).verdict == "no shape shown"


def test_every_token_stands_once_in_each_third_and_y_is_of_one_token() -> None:
    result = position_effect(tiny_model("llama"), passages=3, tokens=12, untrained=False)
    frame: Any = result.frame
    for _, passage in frame.groupby("passage"):
        thirds = passage.groupby("text_position")["third"].agg(lambda values: sorted(values))
        assert all(values == ["end", MIDDLE, "start"] for values in thirds)
        assert (passage.groupby("text_position")["token_id"].nunique() == 1).all()
    assert set(frame["passage_kind"]) == set(NATURAL)
    assert result.contrasts["source"].tolist() == ["model"]


def test_the_untrained_model_stands_beside() -> None:
    """The contrasts of the difference are the difference of the contrasts."""
    rows: Any = position_effect(tiny_model("llama"), passages=3, tokens=6).contrasts.set_index(
        "source"
    )
    assert rows.index.tolist() == ["model", "untrained", "model minus untrained"]
    for end in ("start", "end"):
        difference = rows.loc["model", end] - rows.loc["untrained", end]
        assert rows.loc["model minus untrained", end] == pytest.approx(difference, abs=1e-12)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"passages": 2}, "expected 3 passages or more, .* than the 15 there are, found 2"),
        ({"tokens": 10}, "expected a multiple of three from 6 on"),
        ({"tokens": 9000}, "expected more than 9000 tokens in passage 0"),
        ({"texts": "one text"}, "expected 3 passages or more, .* the 1 there are, found 1"),
        ({"passages": 2, "seed": -1}, "seed: expected a whole number of at least 0, found -1"),
    ],
)
def test_what_cannot_be_tested_is_refused(options: dict[str, Any], words: str) -> None:
    refused(words, position_effect, tiny_model("llama"), **options)


def test_passages_are_paired_by_their_number() -> None:
    result = position_effect(tiny_model("llama"), passages=4, tokens=6)
    frame: Any = result.frame
    untrained = frame["source"] == "untrained"
    turned = pd.concat([frame[untrained][::-1], frame[~untrained]])
    expected, found = (
        replace(result, frame=table).contrasts.set_index("source").sort_index()
        for table in (frame, turned)
    )
    pd.testing.assert_frame_equal(expected, found)
    without = frame[~(untrained & (frame["passage"] == 0))]
    other = without[(without["source"] == "untrained") | (without["passage"] != 3)]
    for table in (without, other):
        with pytest.raises(InputError, match=r"expected the same passages .* found \[0"):
            _ = replace(result, frame=table).contrasts


def test_shuffled_tokens_are_a_control_beside_the_text() -> None:
    """The same tokens of each passage in another order, the last one as it was; the text's own rows
    stay what they are.
    """
    model, options = (
        tiny_model("llama"),
        {"passages": 3, "tokens": 12, "untrained": False},
    )
    plain: Any = position_effect(model, **options).frame
    result = position_effect(model, shuffled=True, seed=4, **options)
    frame: Any = result.frame
    own, shuffled = (frame[frame["source"] == source] for source in ("model", "shuffled"))
    assert own.reset_index(drop=True).equals(plain)
    order = np.random.default_rng(4).permutation(12)
    for passage in range(3):
        first = [
            part[(part["passage"] == passage) & (part["rotation"] == 0)] for part in (own, shuffled)
        ]
        assert first[1]["token_id"].tolist() == first[0]["token_id"].to_numpy()[order].tolist()
    assert result.contrasts["source"].tolist() == ["model", "shuffled"]
    chart: Any = result.chart()
    assert any(
        sentence.startswith("With tokens shuffled: first third")
        for sentence in chart.title.subtitle
    )
