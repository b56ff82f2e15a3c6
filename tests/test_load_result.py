"""What is saved loads back: the same class, tables, provenance and chart; a file that is none is
refused in one line.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import ostools as ost
from ostools.ground.errors import InputError
from ostools.results import Result
from tests.checkpoints import tiny_model
from tests.reporting.every import EVERY
from tests.sets import quick

QUICK = (
    "Sensitivity",
    "Sensitivities",
    "Attention",
    "Collapse",
    "HeadScores",
    "Profile",
)
TABLE_ALONE = {"Reproduction"}
"""A page with results of many classes, which has a folder of its own."""


def assert_same(loaded: Any, saved: Any) -> None:
    assert type(loaded) is type(saved)
    if isinstance(saved, pd.DataFrame):
        pd.testing.assert_frame_equal(loaded, saved, check_exact=True)
    elif isinstance(saved, torch.Tensor):
        assert torch.equal(loaded, saved)
    elif isinstance(saved, Result):
        assert loaded.provenance.as_dict() == saved.provenance.as_dict()
        for field in dataclasses.fields(saved):
            if field.name != "provenance":
                assert_same(getattr(loaded, field.name), getattr(saved, field.name))
    elif isinstance(saved, tuple | list):
        assert len(loaded) == len(saved)
        for one, other in zip(loaded, saved, strict=True):
            assert_same(one, other)
    elif isinstance(saved, dict):
        assert [*loaded] == [*saved]
        assert_same([*loaded.values()], [*saved.values()])
    else:
        assert loaded == saved


@pytest.mark.parametrize("ending", [".parquet", ".json"])
@pytest.mark.parametrize("name", quick([name for name in EVERY if name not in TABLE_ALONE], *QUICK))
def test_a_result_is_what_was_saved(name: str, ending: str, tmp_path: Path) -> None:
    saved = EVERY[name]()
    loaded = ost.load_result(saved.save(tmp_path / f"x{ending}"))
    assert_same(loaded, saved)


def test_a_loaded_result_is_drawn_and_compared_like_a_new_one(tmp_path: Path) -> None:
    measured: Any = EVERY["Sensitivity"]()
    paths: Any = EVERY["Bounds"]()
    loaded: Any = ost.load_result(measured.save(tmp_path / "x.json"))
    other: Any = ost.load_result(paths.save(tmp_path / "x.parquet"))
    assert loaded.plot().to_dict() == measured.plot().to_dict()
    assert_same(ost.compare(loaded, other).frame, ost.compare(measured, paths).frame)


CHANGES: tuple[dict[str, Any], ...] = (
    {"class": "Popen"},
    {"class": "Attention"},
    {"fields": {"summary": {"pickle": "gASVAAAA"}}},
    {"dtypes": {"nothing": "int64"}},
)


def test_a_file_that_says_something_else_is_refused_in_one_line(tmp_path: Path) -> None:
    path = EVERY["Comparison"]().save(tmp_path / "x.json")
    document = json.loads(path.read_text())
    for change in CHANGES:
        path.write_text(json.dumps(document | {"result": document["result"] | change}))
        with pytest.raises(InputError, match=r"x\.json: (expected|unknown)") as refused:
            ost.load_result(path)
        assert "\n" not in str(refused.value), change


def test_what_is_no_file_of_a_result_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "html.json").write_text("<html>")
    (tmp_path / "bytes.parquet").write_bytes(b"PAR1" + bytes(100) + b"PAR1")
    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "other.parquet")
    os.mkfifo(tmp_path / "fifo.json")
    for name in (
        "html.json",
        "bytes.parquet",
        "other.parquet",
        "fifo.json",
        "none.json",
        "x.csv",
        ".",
    ):
        with pytest.raises(InputError) as refused:
            ost.load_result(tmp_path / name)
        assert "\n" not in str(refused.value)


def test_16_bit_numbers_of_before_scores_were_float32_are_refused(tmp_path: Path) -> None:
    """Today's names would take them for those of another arithmetic."""
    pairs = ost.collapse(
        tiny_model("llama"), "figure-5a", lengths=[2], dtypes=["float32", "bfloat16"]
    )
    wide = ost.collapse(tiny_model("llama"), "figure-5a", lengths=[2], dtypes=["float32"])
    for result, refused in ((pairs, True), (wide, False)):
        arithmetic = {
            name: value
            for name, value in result.provenance.arithmetic.items()
            if name != "scores_in_16_bits"
        }
        old = dataclasses.replace(
            result, provenance=dataclasses.replace(result.provenance, arithmetic=arithmetic)
        )
        old.save(tmp_path / "old.parquet")
        if not refused:
            ost.load_result(tmp_path / "old.parquet")
            continue
        with pytest.raises(InputError, match="found a result of an earlier ostools, which rounded"):
            ost.load_result(tmp_path / "old.parquet")
