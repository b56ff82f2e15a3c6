"""The position of a sweep file: of every measurement that reads a task's prompts, and "answer"
where the file says nothing.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pytest
import torch

import ostools as ost
from ostools import hooks
from ostools.measure.position import read_at
from ostools.measure.swept import Cell
from ostools.measure.task_prompt import render_prompt
from ostools.mitigations import Mitigation
from ostools.sweep.cells import MEASUREMENTS, measure
from ostools.sweep.sweep_file import cells_of, sweep_of
from ostools.tasks import AppendixTask
from tests.checkpoints import tiny_model

FORM = AppendixTask("count-ones")


@pytest.mark.parametrize("position", [None, "last-item"])
@pytest.mark.parametrize("name", ["collapse", "sensitivity"])
def test_a_cell_is_read_where_the_file_says(name: str, position: Any) -> None:
    model = tiny_model("llama", seed=1, context=512)
    asked = {"name": name} | ({} if position is None else {"position": position})
    sweep = sweep_of({"tasks": "count-ones", "lengths": [2, 3], "measurements": [asked]})
    (cell,) = cells_of(sweep)
    rows, provenance = measure(model, cell)
    expected = [read_at(model, render_prompt(model, FORM, n), position or "answer") for n in (2, 3)]  # pyright: ignore[reportArgumentType]
    assert provenance.parameters["read_at"]["position"] == (position or "answer")
    if name == "collapse":
        theirs = ost.collapse(
            model, FORM, lengths=[2, 3], dtypes=["float32"], position=position
        ).frame
        assert rows["mean"].tolist() == theirs["mean"].tolist()
        return
    for length, read in zip((2, 3), expected, strict=True):
        assert rows[rows["length"] == length]["position"].max() == len(read.ids) - 1


@pytest.mark.parametrize("name", ["sensitivity", "bounds", "token-homogenization"])
@pytest.mark.parametrize("mitigation", ["sliding-window:window=8", "separator:every=2"])
def test_a_16_bit_cell_under_a_mitigation_is_the_measurement_under_it(
    name: str, mitigation: str
) -> None:
    model = tiny_model("llama", seed=1, context=512, dtype=torch.bfloat16)
    asked = {"tasks": "count-ones", "lengths": [4, 5], "mitigations": mitigation}
    (cell,) = cells_of(sweep_of({**asked, "measurements": name}))
    rows, provenance = measure(model, cell)
    assert set(rows["status"]) == {"active"}
    assert provenance.model["dtype"] == "bfloat16"
    for question in ost.tasks.questions("count-ones", lengths=[4, 5]):
        measurement: Any = MEASUREMENTS[name].function
        theirs = measurement(model, question, mitigation=mitigation).frame
        ours = rows[rows["length"] == question.length].reset_index(drop=True)
        pd.testing.assert_frame_equal(ours[theirs.columns], theirs)


@dataclass(frozen=True)
class InSixteenBits(Mitigation):
    def hooks(self, model: Any) -> Any:
        is_narrow = next(model.parameters()).dtype == torch.bfloat16
        return hooks.scale_scores(model, 2.0) if is_narrow else nullcontext()


def test_what_acts_in_16_bits_alone_is_refused_of_a_cell_that_is_measured_in_float32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny_model("llama", seed=1, context=512, dtype=torch.bfloat16)
    measured = {"tasks": "count-ones", "lengths": 4, "measurements": "sensitivity"}
    (cell,) = cells_of(sweep_of(measured))
    monkeypatch.setattr(Cell, "mitigated", InSixteenBits())
    with pytest.raises(ost.InputError, match="changes nothing in float32, in which it is measured"):
        measure(model, cell)
