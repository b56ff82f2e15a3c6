"""What the benchmarks name is there: they run by hand, so that no test would miss it."""

from __future__ import annotations

from benchmarks import scale
from benchmarks.shapes import SHAPES


def test_every_shape_that_is_measured_is_one_that_can_be_written() -> None:
    assert set(scale.SCALE) <= set(SHAPES)
