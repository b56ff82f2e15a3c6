"""The position of a sweep file: of every measurement that reads a task's prompts, and "answer"
where the file says nothing.
"""

from typing import Any

import pytest

import ostools as ost
from ostools.measure.position import read_at
from ostools.sweep.cells import measure
from ostools.sweep.sweep_file import cells_of
from tests.checkpoints import tiny_model

FORM = ost.tasks.AppendixTask("count-ones")


@pytest.mark.parametrize("position", [None, "last-item"])
@pytest.mark.parametrize("name", ["collapse", "sensitivity"])
def test_a_cell_is_read_where_the_file_says(name: str, position: Any) -> None:
    model = tiny_model("llama", seed=1, context=512)
    asked = {"name": name} | ({} if position is None else {"position": position})
    sweep = ost.sweep.sweep_of({"tasks": "count-ones", "lengths": [2, 3], "measurements": [asked]})
    (cell,) = cells_of(sweep)
    rows, provenance = measure(model, cell)
    expected = [
        read_at(model, ost.measure.render_prompt(model, FORM, n), position or "answer")
        for n in (2, 3)
    ]  # pyright: ignore[reportArgumentType]
    assert provenance.parameters["read_at"]["position"] == (position or "answer")
    if name == "collapse":
        theirs = ost.collapse(
            model, FORM, lengths=[2, 3], dtypes=["float32"], position=position
        ).frame
        assert rows["mean"].tolist() == theirs["mean"].tolist()
        return
    for length, read in zip((2, 3), expected, strict=True):
        assert rows[rows["length"] == length]["position"].max() == len(read.ids) - 1
