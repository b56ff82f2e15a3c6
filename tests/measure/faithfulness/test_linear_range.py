"""Linear range: closed forms of the error along a line, and the derivative against finite
differences.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

import ostools as ost
from ostools import hooks
from ostools.hooks.freeze import HeldParts
from ostools.measure.faithfulness.linear_range import SCALES, _ranges
from ostools.measure.jacobian.certificate import moved_prompts
from ostools.measure.jacobian.linearise import Linearised
from tests.checkpoints import tiny_model

IDS = [40, 50, 61, 50, 70]


T = torch.tensor(SCALES, dtype=torch.float64)[:, None]


@pytest.mark.parametrize(
    ("curvature", "largest"), [(0.0, 1.0), (0.05, 1.0), (0.4, 0.25), (6.4, 2**-6), (1e4, 0.0)]
)
def test_the_range_of_a_parabola(curvature: float, largest: float) -> None:
    """y(t) = t + c t^2: the prediction t is off by c t of its size, so it holds within 0.1 up to t
    = 0.1 / c.
    """
    off = curvature * T**2 * (1 - 1e-9)
    assert float(_ranges(off, torch.zeros(1), torch.ones(1))) == largest


def test_what_rounding_hides_is_missing_and_a_prediction_that_fails_later_is_not_taken_up_again() -> (
    None
):
    size, noise = torch.tensor([1e-9, 1.0, 1.0]), torch.tensor([1e-6, 0.0, 0.019 * 2**-6])
    later = torch.where(T == 0.25, 0.5 * T, 0.0)
    off = torch.cat([torch.full_like(T, 1e-6), later, 0.5 * T], dim=1)
    hidden, later, fails_where_it_is_first_seen = _ranges(off, noise, size).tolist()
    assert np.isnan(hidden)
    assert later == SCALES[SCALES.index(0.25) - 1]
    assert np.isnan(fails_where_it_is_first_seen)


def test_small_scales_that_rounding_hides_are_no_failures() -> None:
    noise = torch.full((9,), 1e-2)
    assert _ranges(noise.expand(len(SCALES), 9), noise, torch.ones(9)).tolist() == [1.0] * 9


@pytest.mark.parametrize("family", ["llama", "gemma3", "neox"])
def test_the_predicted_change_is_a_finite_difference_and_the_change_that_of_a_replaced_token(
    family: str,
) -> None:
    model = tiny_model(family, dtype=torch.float64)
    frame: Any = ost.measure.linear_range(model, ost.Prompt.from_ids(model, IDS)).frame
    assert len(frame) == len(IDS)
    assert not set(frame["other_id"]) & set(IDS)
    assert frame["linear_range"].between(0, 1).all()
    for row in frame.itertuples():
        ids = torch.tensor([IDS, [*IDS[: row.position], row.other_id, *IDS[row.position + 1 :]]])
        whole, replaced = model.input_to_embed(ids)[0].detach()
        step = 1e-6 * (replaced - whole)
        streams = torch.stack([whole, whole + step, whole - step, replaced])
        with hooks.exact_arithmetic(model):
            linear, held = Linearised(model, whole), [HeldParts()] * len(streams)
            y, up, down, y_replaced = moved_prompts(linear, streams, held)[0]
        assert row.predicted_change == pytest.approx(float((up - down).norm()) / 2e-6, rel=1e-5)
        assert row.change == pytest.approx(float((y_replaced - y).norm()), rel=1e-9)


def test_the_rank_correlation_is_of_the_tokens_that_reach_y() -> None:
    """Two layers that see three tokens each: ten of 15 tokens are 0 on both sides."""
    layers = ["sliding_attention"] * 2
    model = tiny_model("gemma2", window=3, d_model=16, d_mlp=24, layer_types=layers)
    result = ost.measure.linear_range(model, ost.Prompt.from_ids(model, [2, *range(40, 54)]))
    columns = result.frame[["predicted_change", "change"]].to_numpy(float)
    assert (columns[:10] == 0).all()
    in_reach: Any = spearmanr(*columns[10:].T)
    assert result.spearman == pytest.approx(in_reach.statistic)


def test_a_token_that_has_no_embedding_is_never_drawn() -> None:
    model: Any = tiny_model("llama", fresh=True)
    model.tokenizer.add_tokens([f"zq{index}" for index in range(400)])
    frame: Any = ost.measure.linear_range(model, ost.Prompt.from_ids(model, IDS)).frame
    assert frame["other_id"].max() < len(model.W_E) < len(model.tokenizer)
