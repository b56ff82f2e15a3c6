"""The Pareto front against a loop over every pair, with ties."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ostools.ground.errors import InputError
from ostools.theory.statistics.pareto import pareto_front

Points = list[tuple[int, int]]


def brute_force(points: Points) -> list[bool]:
    def dominates(q: tuple[int, int], p: tuple[int, int]) -> bool:
        return q[0] >= p[0] and q[1] >= p[1] and q != p

    return [not any(dominates(q, p) for q in points) for p in points]


# Few different values, so that ties of one objective and of both are common.
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=25))
def test_against_brute_force(points: Points) -> None:
    found = pareto_front(torch.tensor(points, dtype=torch.float64)).tolist()
    assert found == brute_force(points)
    assert any(found)  # the best in the first objective, and among those in the second, has nobody above it


def test_what_is_unknown_has_no_front() -> None:
    with pytest.raises(InputError, match="finite objectives, found NaN"):
        pareto_front(torch.tensor([[1.0, float("nan")]]))
