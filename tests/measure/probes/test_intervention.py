"""What the output reads: planted directions that it reads, and ones that it cannot see."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import ostools as ost
from ostools.ground.errors import InputError
from ostools.measure.probes.intervention import along, arrived, moved_answers
from ostools.results import frame_of
from tests.checkpoints import tiny_model

NUMBERS = torch.arange(5)


def unembedding() -> torch.Tensor:
    """Answer k's row: logits k x - k^2 / 2 of x = y_0 are greatest at k = round(x); y_1 is not
    read.
    """
    return torch.stack([NUMBERS.double(), torch.zeros(5).double()], dim=1)


def logits(y: torch.Tensor) -> torch.Tensor:
    return 50 * (y @ unembedding().T - NUMBERS.double() ** 2 / 2)


def test_the_answer_follows_a_planted_direction_that_is_read() -> None:
    right = torch.tensor([0, 1, 2, 3])
    y = torch.stack([right.double(), torch.zeros(4).double()], dim=1)
    read = torch.tensor([2.0, 0.0]).double()  # a probe that says 2 y_0
    step = along(y, read, "probe")
    assert torch.equal(step, torch.tensor([0.5, 0.0]).double())
    moved = moved_answers(logits(y), logits(y + 2 * step), NUMBERS, right)
    assert moved["followed"] == 1
    assert moved["asked"] == 4
    assert moved["intervention"] == pytest.approx(1, abs=1e-9)
    assert moved["log_odds"] == pytest.approx(50)


def test_a_planted_orthogonal_direction_is_probe_and_unread() -> None:
    right = torch.tensor([0, 1, 2, 3])
    y = torch.stack([right.double(), right.double()], dim=1)
    unread = torch.tensor([0.0, 1.0]).double()
    step = along(y, unread, "probe")
    moved = moved_answers(logits(y), logits(y + step), NUMBERS, right)
    assert (moved["intervention"], moved["log_odds"], moved["followed"]) == (0, 0, 0)


def test_along_the_data_the_step_is_the_one_that_representations_take() -> None:
    """Both coordinates move with the number: weights may read either, the data move both."""
    number = torch.arange(6).double()
    y = torch.stack([3 * number, -number], dim=1)
    for weights in (torch.tensor([1 / 3, 0.0]), torch.tensor([0.0, -1.0])):
        step = along(y, weights.double(), "data")
        torch.testing.assert_close(step, torch.tensor([3.0, -1.0]).double(), rtol=1e-6, atol=0)


def test_a_move_that_the_dtype_rounds_away_does_not_arrive() -> None:
    """Of bfloat16 the next number behind 256 is 258: a move by 2 arrives, by 0.5 nothing of it;
    float32 has both.
    """
    rows, steps = torch.full((3, 1), 256.0), torch.tensor([[2.0], [2.0], [2.0]]).double()
    assert arrived(rows.bfloat16(), steps) == 1
    assert arrived(rows.bfloat16(), steps / 4) == 0
    assert arrived(rows, steps / 4) == 1


def test_a_probe_without_weights_is_refused() -> None:
    with pytest.raises(InputError, match="depends on the representation"):
        along(torch.ones(3, 2).double(), torch.zeros(2).double(), "probe")


@pytest.mark.slow
def test_every_dtype_is_read_for_itself() -> None:
    model = tiny_model("llama")
    asked = {"lengths": [1, 2, 3], "seeds": range(8), "dtypes": ["float32", "bfloat16", "float64"]}
    found = frame_of(
        ost.measure.probe_intervention(model, "count-ones-bernoulli:tidy=true", **asked)
    )
    assert found["site"].tolist() == ["residual", "residual", "residual", "residual", "y", "y"] * 3
    assert (found["predicted"] == 1).all()
    assert (found["moved"] < found["prompts"]).all()
    by_dtype = {str(dtype): rows.reset_index(drop=True) for dtype, rows in found.groupby("dtype")}
    for name in ("intervention", "log_odds"):
        # Sums in two precisions; a probe's weights divide by what may be small.
        np.testing.assert_allclose(
            by_dtype["float32"][name], by_dtype["float64"][name], rtol=2e-2, atol=1e-4
        )
    assert (by_dtype["float64"]["arrived"] - 1).abs().max() < 1e-9
    stored = ost.measure.probe_intervention(
        tiny_model("llama", dtype=torch.bfloat16), "count-ones-bernoulli:tidy=true", **asked
    )
    same = frame_of(stored)[found["dtype"] == "bfloat16"].reset_index(drop=True)
    pd.testing.assert_frame_equal(same, by_dtype["bfloat16"])


def test_answers_of_several_tokens_are_known_by_their_first(embedded) -> None:
    """10, 20, ...: digits are tokens, and no two of these begin alike. From each to the next the
    probe moves by ten.
    """
    found = frame_of(
        ost.measure.probe_intervention(embedded, "count-ones", lengths=range(10, 60, 10))
    )
    assert (found["predicted"] == 10).all()
    assert (found["moved"] == 4).all()
    assert (found["prompts"] == 5).all()
    with pytest.raises(
        InputError, match=r"found 1 and 10, which both begin with '1'.*such as 2 to 9"
    ):
        ost.measure.probe_intervention(embedded, "count-ones", lengths=[1, 2, 3, 4, 10])


def test_what_cannot_be_read_is_refused() -> None:
    model = tiny_model("llama")
    with pytest.raises(InputError, match="whose answer is a number"):
        ost.measure.probe_intervention(model, "copy:uniform=true", lengths=[3, 4])
    with pytest.raises(InputError, match="unknown dtype 'float31'"):
        ost.measure.probe_intervention(model, "count-ones", lengths=[1, 2], dtypes=["float31"])
