"""What the benchmarks name is there: they run by hand, so that no test would miss it. And the
script for a GPU, on the CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import ostools as ost
from benchmarks import gpu, scale
from benchmarks.shapes import SHAPES
from tests.checkpoints import tiny_model


def test_every_shape_that_is_measured_is_one_that_can_be_written() -> None:
    assert {*scale.SCALE, *gpu.Sizes().shapes, *gpu.TINY.shapes} <= set(SHAPES)


def test_an_exact_profile_that_runs_out_of_time_says_how_much_of_it_was_done() -> None:
    model = tiny_model("gemma")
    prompt = ost.Prompt.from_ids(model, [2, 10, 11, 12])
    cut, whole = (gpu.exact_profile(model, prompt, 1e9, gpu.Clock(limit)) for limit in (0.0, 600.0))
    assert 0 < cut["done"] < 1
    assert (cut["whole"], cut["share_of_float32_rate"]) == (False, None)
    assert (whole["whole"], whole["done"]) == (True, 1)
    assert whole["share_of_float32_rate"] <= whole["share_of_float32_rate_rows"]


@pytest.mark.slow
def test_the_script_for_a_gpu_measures_every_part_of_a_tiny_shape_in_its_time(tmp_path: Path) -> None:
    late = dict(gpu.run(tmp_path / "late", torch.device("cpu"), gpu.TINY, seconds=0.0))
    assert late["machine"]["skipped"] == late["tiny-model"]["skipped"] == "0 s were over"
    gpu.main(["--out", str(tmp_path / "all"), "--device", "cpu", "--tiny"])
    parts = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in (tmp_path / "all").iterdir()}
    kinds = ("model", "first-pass", "sketch", "answers", "collapse", "exact")
    assert set(parts) == {"machine", *(f"parity-{dtype}" for dtype in gpu.LIMITS), *(f"tiny-{kind}" for kind in kinds)}
    assert not [name for name, values in parts.items() if "failed" in values or "skipped" in values]
    for dtype in gpu.LIMITS:  # the CPU against itself
        rows = parts[f"parity-{dtype}"]["rows"]
        assert {row["difference"] for row in rows if "difference" in row} == {0.0}
        assert {row["what"] for row in rows if row["route"] == "auto" and "difference" in row} >= {
            "exact, full",
            "answer",
        }
        assert {row["what"] for row in rows if row["route"] == "generic" and "difference" in row} >= {"exact, full"}
    assert parts["tiny-exact"]["whole"]
