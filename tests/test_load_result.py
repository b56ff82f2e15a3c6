"""What is saved loads back: the same class, tables, provenance and chart; a file that is none is
refused in one line.
"""

import dataclasses
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import ostools as ost
from ostools.results import Result
from tests.checkpoints import refused, tiny_model
from tests.reporting.every import EVERY
from tests.sets import quick

IDS = [1, 9, 4, 7, 2]
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
    assert_same(ost.load_result(saved.save(tmp_path / f"x{ending}")), saved)


def test_the_rows_of_a_file_that_was_sorted_stay_together(tmp_path: Path) -> None:
    """With pandas, which keeps what is stored beside them."""
    saved: Any = ost.sensitivity(tiny_model("llama"), ost.Prompt.from_ids(tiny_model("llama"), IDS))
    table = saved.frame.assign(
        log=np.log10(saved.frame["operator_norm"]).where(saved.frame["position"] > 0, -np.inf),
        note=pd.Series([None, *map(str, range(1, len(saved.frame)))], dtype=object),
    )
    path = dataclasses.replace(saved, frame=table).save(tmp_path / "x.parquet")
    pd.read_parquet(path).sort_values("operator_norm").to_parquet(path)
    read = ost.load_result(path).frame
    expected = table.sort_values("operator_norm", ignore_index=True)
    pd.testing.assert_frame_equal(read.drop(columns="note"), expected.drop(columns="note"))
    assert read["note"].fillna("").tolist() == expected["note"].fillna("").tolist()
    assert np.isinf(read["log"]).any()


CHANGES: tuple[dict[str, Any], ...] = (
    {"class": "Popen"},
    {"class": "Attention"},
    {"fields": {"summary": {"pickle": "gASVAAAA"}}},
    {"dtypes": {"nothing": "int64"}},
)


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_says_something_else_is_refused_in_one_line(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    path = EVERY["Comparison"]().save(tmp_path / "x.json")
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | {"result": document["result"] | change}))
    refused(r"^[^\n]*x\.json: (expected|unknown)[^\n]*$", ost.load_result, path)


def test_what_is_no_file_of_a_result_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "html.json").write_text("<html>")
    (tmp_path / "bytes.parquet").write_bytes(b"PAR1" + bytes(100) + b"PAR1")
    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "other.parquet")
    for name in ("html.json", "bytes.parquet", "other.parquet", "none.json", "x.csv", "."):
        refused(r"^[^\n]+$", ost.load_result, tmp_path / name)


@pytest.mark.parametrize("dtypes", [["float32", "bfloat16"], ["float32"]])
def test_16_bit_numbers_of_before_scores_were_float32_are_refused(
    tmp_path: Path, dtypes: Any
) -> None:
    """Today's names would take them for those of another arithmetic."""
    result = ost.collapse(tiny_model("llama"), "figure-5a", lengths=[2], dtypes=dtypes)
    arithmetic = {**result.provenance.arithmetic}
    del arithmetic["scores_in_16_bits"]
    provenance = dataclasses.replace(result.provenance, arithmetic=arithmetic)
    old = dataclasses.replace(result, provenance=provenance).save(tmp_path / "old.parquet")
    words = "found a result of an earlier ostools, which rounded"
    with pytest.raises(ost.InputError, match=words) if "bfloat16" in dtypes else nullcontext():
        ost.load_result(old)


def test_norms_of_another_position_and_bounds_of_every_one_are_refused() -> None:
    """Both were options once; today they would be read as those of the last token."""
    model = tiny_model("llama")
    prompt = ost.Prompt.from_ids(model, [1, 2, 3])
    norms, path_sums = ost.sensitivity(model, prompt), ost.bounds(model, prompt, variants="local")
    parameters = {**norms.provenance.parameters, "position": 1}
    provenance = dataclasses.replace(norms.provenance, parameters=parameters)
    with pytest.raises(
        ost.InputError, match="found the norms of another position's y, which an earl"
    ):
        dataclasses.replace(norms, provenance=provenance)
    with pytest.raises(ost.InputError, match="found those of every position, which an earlier"):
        dataclasses.replace(
            path_sums, frame=path_sums.frame.assign(last=range(len(path_sums.frame)))
        )
