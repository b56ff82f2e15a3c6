"""Distances under any hooks of a mitigation, at any lengths together, are those of each pair's two
passes alone.
"""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import event, given
from hypothesis import strategies as st

import ostools as ost
from ostools import hooks, mitigations
from ostools.models import view_in
from tests.compositions.drawn import LOOKED_FOR, REFUSALS, Weights, weights

GIVEN = (
    None,
    "sliding-window:window=3",
    "attention-temperature:factor=1.7",
    "sliding-window:window=4 + attention-temperature:factor=0.5",
)
"""Mitigations that act in the forward pass, and leave the prompt as it is."""

SAME = 1e-9
"""Of ||v||, in float64."""


@LOOKED_FOR
@given(
    weights=weights("float64", "float32"),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=3, unique=True),
    given=st.sampled_from(GIVEN),
    name=st.sampled_from(["figure-5a", "figure-5b"]),
)
def test_the_float64_distances_are_those_of_two_plain_passes(
    weights: Weights, lengths: list[int], given: str | None, name: str
) -> None:
    model = weights.model()
    try:
        found: Any = ost.collapse(
            model, name, lengths=lengths, dtypes=["float32"], mitigation=given
        ).reference
    except REFUSALS:
        event("refused")
        return
    event("measured")
    double = view_in(model, torch.float64)
    task = ost.tasks.figure_5a() if name == "figure-5a" else ost.tasks.figure_5b()

    def last(ids: list[int]) -> torch.Tensor:
        acting = (
            mitigations.mitigation(given).hooks(double) if given else hooks.capture(double, "z")
        )
        with (
            torch.no_grad(),
            acting,
            hooks.exact_arithmetic(double),
            hooks.capture(double, "final_norm") as seen,
        ):
            double(torch.tensor([ids]))
        return seen["final_norm"][0, -1]

    rows = found[
        (found["site"] == "y") & (found["weights"] == "given") & (found["pair"] == "theorem")
    ]
    assert sorted(rows["length"]) == sorted(lengths)
    for row in rows.to_dict("records"):
        ids = ost.encode(model, task.text(row["length"])).ids.tolist()
        y, y_star = last(ids), last([*ids, ids[-1]])
        size = float(y.norm())
        assert abs(row["distance"] - float((y - y_star).norm())) <= SAME * size
        assert abs(row["relative"] - float((y - y_star).norm()) / size) <= SAME
