"""What the output reads: planted directions that it reads, and ones that it cannot see."""

from __future__ import annotations

import math

import pytest
import torch

import ostools as ost
from ostools.ground.errors import InputError
from ostools.measure.fate.readout import along, largest_cosine, moved_answers
from ostools.results import frame_of
from tests.checkpoints import tiny_model

NUMBERS = torch.arange(5)


def unembedding() -> torch.Tensor:
    """Answer k's row: logits k x - k^2 / 2 of x = y_0 are greatest at k = round(x); y_1 is not read."""
    return torch.stack([NUMBERS.double(), torch.zeros(5).double()], dim=1)


def logits(y: torch.Tensor) -> torch.Tensor:
    return 50 * (y @ unembedding().T - NUMBERS.double() ** 2 / 2)


def test_a_planted_direction_that_is_read_has_its_cosine_and_its_answer_follows() -> None:
    right = torch.tensor([0, 1, 2, 3])
    y = torch.stack([right.double(), torch.zeros(4).double()], dim=1)
    read = torch.tensor([2.0, 0.0]).double()  # a probe that says 2 y_0
    step = along(y, read, "probe")
    assert torch.equal(step, torch.tensor([0.5, 0.0]).double())
    assert largest_cosine(step[None], unembedding()).item() == 1
    moved = moved_answers(logits(y), logits(y + 2 * step), NUMBERS, right)
    assert moved["followed"] == 1
    assert moved["asked"] == 4
    assert moved["intervention"] == pytest.approx(1, abs=1e-9)
    assert moved["log_odds"] == pytest.approx(50)


def test_a_planted_orthogonal_direction_is_decodable_and_unread() -> None:
    right = torch.tensor([0, 1, 2, 3])
    y = torch.stack([right.double(), right.double()], dim=1)
    unread = torch.tensor([0.0, 1.0]).double()
    step = along(y, unread, "probe")
    assert largest_cosine(step[None], unembedding()).item() == 0
    moved = moved_answers(logits(y), logits(y + step), NUMBERS, right)
    assert (moved["intervention"], moved["log_odds"], moved["followed"]) == (0, 0, 0)


def test_along_the_data_the_step_is_the_one_that_representations_take() -> None:
    """Both coordinates move with the number: weights may read either, the data move both."""
    number = torch.arange(6).double()
    y = torch.stack([3 * number, -number], dim=1)
    for weights in (torch.tensor([1 / 3, 0.0]), torch.tensor([0.0, -1.0])):
        step = along(y, weights.double(), "data")
        torch.testing.assert_close(step, torch.tensor([3.0, -1.0]).double(), rtol=1e-6, atol=0)


def test_no_prompt_that_was_right_has_no_share() -> None:
    right = torch.tensor([0, 1])
    moved = moved_answers(torch.eye(5)[[4, 4]], torch.eye(5)[[4, 4]], NUMBERS, right)
    assert moved["asked"] == 0
    assert math.isnan(float(moved["followed"]))


def test_a_probe_without_weights_is_refused() -> None:
    with pytest.raises(InputError, match="depends on the representation"):
        along(torch.ones(3, 2).double(), torch.zeros(2).double(), "probe")


@pytest.mark.slow
def test_on_the_trained_model_the_last_layer_is_the_models_own_answer(embedded) -> None:
    found = ost.readout(embedded, "count-ones-bernoulli", lengths=range(2, 8), seeds=range(10))
    found = frame_of(found)
    at_y, behind = (
        found[found["site"] == "y"].iloc[0],
        found[(found["layer"] == 4) & (found["site"] == "residual")].iloc[0],
    )
    assert at_y["rank"] == behind["rank"] == 1
    assert at_y["log_probability"] == pytest.approx(behind["log_probability"], abs=1e-5)
    assert set(found["direction"]) == {"probe", "data"}
    assert (found["predicted"] == 1).all()


def test_a_step_at_the_last_layer_is_the_same_through_the_final_norm() -> None:
    """Of a tiny random model: what is refused, and that it runs on every layer."""
    model = tiny_model("llama")
    found = ost.readout(model, "count-ones-bernoulli:tidy=true", lengths=[1, 2, 3], seeds=range(8)).frame
    assert found["site"].tolist() == ["residual", "residual", "residual", "residual", "y", "y"]
    assert found["random_low"].between(0, 1).all()
    with pytest.raises(InputError, match="whose answer is a number"):
        ost.readout(model, "copy-last:uniform=true", lengths=[3, 4])
    with pytest.raises(InputError, match=r"n and n \+ 1 are one token each"):
        ost.readout(model, "count-ones", lengths=[12, 13])
    with pytest.raises(InputError, match="found 16 bits"):
        ost.readout(tiny_model("llama", dtype=torch.bfloat16), "count-ones", lengths=[1, 2])
