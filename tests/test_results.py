"""Results are saved whole or not at all, by the ending of their name, with the provenance of their
numbers.
"""

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
import vl_convert

from ostools.ground.errors import InputError
from ostools.reporting.style.notebook import LARGEST, VEGA_LITE
from ostools.results import (
    AGREES_WITHIN,
    PICTURES,
    TABLES,
    Provenance,
    Result,
    TableHead,
    checked_output,
    write_atomically,
)
from tests.checkpoints import refused, tiny_model
from tests.reporting.charts.test_every_result import results_of
from tests.reporting.every import EVERY, chart
from tests.reporting.made import HOSTILE, made_sensitivity
from tests.sets import quick

READ = {
    ".parquet": pd.read_parquet,
    ".csv": pd.read_csv,
    ".json": lambda path: pd.DataFrame(json.loads(Path(path).read_text())["rows"]),
}


def test_every_result_has_a_case() -> None:
    kinds = [kind for kind in results_of(Result) if "__dataclass_fields__" in vars(kind)]
    assert {kind.__name__ for kind in kinds} == set(EVERY)


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_every_result_shows_itself(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    result = EVERY[name]()
    drawn = chart(name)
    monkeypatch.setattr(type(result), "plot", lambda self: drawn)  # made once: it is the dear part
    bundle: Any = result._repr_mimebundle_()
    data, metadata = bundle
    assert data["text/plain"] == repr(result).splitlines()[0]
    assert "text/html" not in data  # front ends would show it in place of the chart
    assert sum(len(json.dumps(value, allow_nan=False)) for value in data.values()) < 2 * LARGEST
    assert metadata["image/png"]["width"] < 1400
    if VEGA_LITE in data:
        assert data[VEGA_LITE]["description"] == repr(result).splitlines()[0]
        assert "http" not in vl_convert.vegalite_to_svg(data[VEGA_LITE], "5.8").replace(
            "http://www.w3.org/", ""
        )


def test_a_printed_result_is_a_title_and_its_first_rows() -> None:
    result = made_sensitivity(
        {"full": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]}, [*HOSTILE[:6], "\x1b[31m"]
    )
    lines = repr(result).splitlines()
    assert lines[0].startswith("Sensitivity: 7 rows of ")
    assert len(lines) == 2 + 5
    assert repr(result).replace("\n", "").isprintable()


@pytest.mark.parametrize("ending", quick(PICTURES, ".html", ".pdf"))
def test_a_chart_is_saved_in_every_form(tmp_path: Path, ending: str) -> None:
    begins = {".html": b"<!doctype html>", ".png": b"\x89PNG", ".svg": b"<svg", ".pdf": b"%PDF"}
    assert (
        made_sensitivity({"full": [1.0, 2.0]})
        .save(tmp_path / f"x{ending}")
        .read_bytes()
        .startswith(begins[ending])
    )


@pytest.mark.parametrize("ending", TABLES)
def test_a_table_is_read_back_as_it_was(tmp_path: Path, ending: str) -> None:
    small = [1 / 3, 1.2345678901234567e-14, 2.345678901234567e-30]  # digits count, and not decimals
    result = made_sensitivity(
        {"full": small, "frozen": [1e300 / 3, 5e-324, 0.0]}, ['a,"b"', "line\nend", "é"]
    )
    back = READ[ending](result.save(tmp_path / f"table{ending.upper()}"))
    pd.testing.assert_frame_equal(back, result.frame, check_exact=True, check_dtype=False)
    hostile = made_sensitivity({"full": [1.0] * len(HOSTILE)}, HOSTILE)
    if ending == ".parquet":
        assert READ[ending](hostile.save(tmp_path / "x.parquet"))["token"].tolist() == list(HOSTILE)


def test_where_no_result_can_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv").mkdir()
    endings = r"expected a name ending in \.parquet .* \.pdf, found"
    missing = {
        "none/x.csv": r"the directory .* does not exist",
        "x.csv": "expected a file, found a directory",
    }
    for name, words in {**dict.fromkeys(("x", "x.parquet.gz", ".png"), endings), **missing}.items():
        refused(f"^--out .*: {words}", checked_output, tmp_path / name, option="--out")
        with pytest.raises(InputError, match=f"^path .*: {words}"):
            made_sensitivity({"full": [1.0]}).save(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["x.csv"]


def test_what_was_there_stands_until_the_new_file_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.csv"
    path.write_text("before")

    def half(frame: Any, provenance: Any, part: Path, *_: Any) -> Any:
        part.write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ostools.results.files._write_table", half)
    with pytest.raises(InputError, match=r"cannot write .*: No space left on device"):
        made_sensitivity({"full": [1.0]}).save(path)
    assert (path.read_text(), list(tmp_path.iterdir())) == ("before", [path])


def test_what_a_killed_write_left_is_removed_by_the_next_to_the_same_path(tmp_path: Path) -> None:
    (gone := subprocess.Popen(["true"])).wait()
    left = tmp_path / f".x.csv.{gone.pid}.abcd_123.csv"
    of_another = [
        tmp_path / f".x.csv.{os.getpid()}.abcd_123.csv",
        tmp_path / f".y.csv.{gone.pid}.abcd_123.csv",
        tmp_path / ".x.csv.notes",
    ]
    for path in (left, *of_another):
        path.write_text("half")
    write_atomically(tmp_path / "x.csv", lambda part: part.write_text("whole"))
    assert {*tmp_path.iterdir()} == {tmp_path / "x.csv", *of_another}


def test_provenance_of_a_model_is_plain_json() -> None:
    model = tiny_model("gemma")
    found = Provenance.collect(model, (2, 5), variants=("local",), path=Path("x")).as_dict()
    assert json.loads(json.dumps(found)) == found
    assert (found["token_ids"], found["parameters"]["variants"]) == ([2, 5], ["local"])
    assert found["model"]["architecture"] == "GemmaForCausalLM"
    assert len(found["model"]["weight_hash"]) == 32
    assert set(found["versions"]) == {
        "oversquashing-tools",
        "torch",
        "transformers",
        "transformer-lens",
    }
    assert found["arithmetic"] == {
        "threads": torch.get_num_threads(),
        "kernels": torch.backends.cpu.get_cpu_capability(),
        "agrees_within": AGREES_WITHIN,
        "scores_in_16_bits": "float32",
    }


@pytest.mark.parametrize("name", ["Evaluation", "AnswerDifference", "Collapse", "Sensitivity"])
def test_rows_of_several_results_are_no_result(name: str) -> None:
    """A frame that a user joined would be told as one curve; rows left out of it would not."""
    result: Any = EVERY[name]()
    twice = pd.concat([result.frame, result.frame], ignore_index=True)
    with pytest.raises(InputError, match=f"^{name}: expected one row for each .*, found several"):
        replace(result, frame=twice)
    half = replace(result, frame=result.frame[::2])
    assert type(half) is type(result)
    if "task" in result.frame:
        other = result.frame.assign(task="another", length=result.frame["length"] + 10_000)
        both = pd.concat([result.frame, other], ignore_index=True)
        with pytest.raises(
            InputError, match=f"^{name}: expected rows of one task, found .*another"
        ):
            replace(result, frame=both)


@pytest.mark.parametrize("name", ["Sensitivities", "Study", "Profile", "Change", "Comparison"])
def test_a_part_of_the_rows_is_refused_beside_tables_of_all(name: str) -> None:
    whole: Any = EVERY[name]()
    with pytest.raises(InputError, match=r"expected the \d+ rows that its other tables"):
        replace(whole, frame=whole.frame[1:])


@pytest.mark.parametrize("name", ["LinearRange", "Bounds", "Hops", "HeadScores", "Patching"])
def test_rows_of_two_results_are_not_told_as_one(name: str) -> None:
    once: Any = EVERY[name]()
    with pytest.raises(InputError, match="expected one row for each"):
        replace(once, frame=pd.concat([once.frame, once.frame]))
    with pytest.raises(InputError, match="expected at least one row"):
        replace(once, frame=once.frame[:0])
    assert replace(once, frame=once.frame.set_axis([0] * len(once.frame))).findings()


def test_rows_by_size_whatever_their_index_is() -> None:
    rows = pd.DataFrame({"value": [1.0, -3.0, 2.0, 3.0]}, index=[0, 0, 0, 0])
    _, table = TableHead(greatest="value").of(SimpleNamespace(frame=rows))
    assert table["value"].tolist() == [-3.0, 3.0, 2.0, 1.0]
