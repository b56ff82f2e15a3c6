"""What the benchmarks name is there: they run by hand, so that no test would miss it. And the
script for a GPU, on the CPU."""

import json
from pathlib import Path

import pytest

from benchmarks import gpu, scale
from benchmarks.shapes import SHAPES


def test_every_shape_that_is_measured_is_one_that_can_be_written() -> None:
    assert {*scale.SCALE, *gpu.Sizes().shapes, *gpu.TINY.shapes} <= set(SHAPES)


@pytest.mark.slow
def test_the_script_for_a_gpu_measures_every_part_of_a_tiny_shape_in_its_time(
    tmp_path: Path,
) -> None:
    gpu.main(["--out", str(tmp_path / "all"), "--device", "cpu", "--tiny"])
    parts = {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in (tmp_path / "all").iterdir()
    }
    kinds = ("model", "first-pass", "sketch", "answers", "collapse", "exact")
    assert set(parts) == {
        "machine",
        *(f"parity-{dtype}" for dtype in gpu.LIMITS),
        *(f"tiny-{kind}" for kind in kinds),
    }
    assert not [name for name, values in parts.items() if "failed" in values or "skipped" in values]
    for dtype in gpu.LIMITS:  # the CPU against itself
        rows = parts[f"parity-{dtype}"]["rows"]
        assert {row["difference"] for row in rows if "difference" in row} == {0.0}
    assert parts["tiny-exact"]["whole"]
