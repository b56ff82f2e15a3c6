"""Quick exact cases of a study: which cotangents and tokens a sensitivity is of, and when a pair is
active.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

import ostools as ost
from ostools.measure.profiles.position_effect import PositionEffect
from ostools.measure.study import arms
from ostools.measure.task_prompt import carrier_positions, render_prompt
from ostools.mitigations import Hint
from ostools.mitigations.passes import SlidingWindow
from ostools.results import Provenance
from ostools.tasks import AppendixTask
from tests.checkpoints import tiny_model

TASK = AppendixTask("copy-last")
SMALL: dict[str, Any] = {"d_model": 16, "n_heads": 2, "n_key_value_heads": 1, "d_mlp": 16}


def test_a_sketch_is_drawn_by_the_length_and_is_the_mean_over_the_tokens_that_carry_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, seeds = tiny_model("llama", seed=1, context=768, **SMALL), []

    def norms(_: Any, prompt: Any, *, seed: int, **how: Any) -> Any:
        seeds.append(seed)
        positions = range(len(prompt.ids))
        frame = pd.DataFrame({"position": positions, "frobenius_norm": [p**2 for p in positions]})
        return PositionEffect(frame, Provenance.without_model())

    monkeypatch.setattr(arms, "sensitivity", norms)
    monkeypatch.setattr(arms, "choose_method", lambda d_model, exact_fits: ("sketch", ""))
    how: dict[str, Any] = {"measures": ["sensitivity"], "sensitivity_lengths": 2, "chat": False}
    task = AppendixTask("count-ones")
    found = ost.study(model, task, mitigations=[Hint()], lengths=[2, 5], **how)
    assert sorted(seeds) == [2, 2, 5, 5]
    rows: Any = found.frame.query("quantity == 'sensitivity'")
    assert rows["length"].tolist() == [2, 5]
    for length, value in zip(rows["length"], rows["baseline"], strict=True):
        carriers = carrier_positions(model, render_prompt(model, task, length, chat=False))
        assert len(carriers) == length
        assert value == pytest.approx(sum(p**2 for p in carriers) / length)


def test_a_pair_is_active_where_its_longer_question_alone_is_changed() -> None:
    model = tiny_model("llama", seed=1, context=768, **SMALL)
    lengths = [render_prompt(model, TASK, n, chat=False).tokens for n in (2, 3)]
    assert lengths[1] > lengths[0]
    how: dict[str, Any] = {"measures": ["collapse"], "dtypes": ["bfloat16"], "chat": False}
    how |= {"position": "prompt-end"}
    for window, status in ((lengths[0], "active"), (lengths[1], "inactive")):
        found = ost.study(model, TASK, mitigations=[SlidingWindow(window)], lengths=[2], **how)
        rows: Any = found.frame.query("mitigation != 'none' and dtype == 'float64'")
        assert rows["status"].tolist() == [status], window
