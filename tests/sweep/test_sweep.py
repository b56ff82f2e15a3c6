"""What a sweep file may say, and that everything else is refused in one line that names what and
where.
"""

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import ostools as ost
from ostools import hooks
from ostools.measure.position import read_at
from ostools.measure.swept import Cell
from ostools.mitigations import Mitigation
from ostools.sweep import Sweep, read_sweep, sweep_of
from ostools.sweep.cells import MEASUREMENTS, keyed, measure, to_load
from ostools.sweep.reading import provenance_of
from ostools.sweep.sweep_file import cells_of
from tests.checkpoints import refused, tiny_model

SMALL = {"tasks": "copy-last", "lengths": "4:6", "measurements": "evaluate"}


@pytest.mark.parametrize(
    ("written", "lengths"), [("4:8", (4, 5, 6, 7, 8)), ("[8, '2:3']", (2, 3, 8)), ("12", (12,))]
)
def test_a_range_is_a_range_and_not_a_number_in_base_sixty(
    tmp_path: Path, written: str, lengths: tuple[int, ...]
) -> None:
    (tmp_path / "sweep.yaml").write_text(
        f"tasks: copy-last\nlengths: {written}\nmeasurements: evaluate\n"
    )
    assert read_sweep(tmp_path / "sweep.yaml").lengths == lengths


def test_the_example_is_a_sweep() -> None:
    assert len(cells_of(read_sweep(Path(__file__).parents[2] / "examples" / "sweep.yaml"))) == 24


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"measurments": "evaluate"}, "measurments: no such key: did you mean 'measurements'"),
        ({"measurements": "evaluat"}, "unknown measurement 'evaluat': did you mean 'evaluate'"),
        ({"measurements": [{"name": "evaluate", "batchsize": 1}]}, "0.batchsize: no such key: did you mean 'batch_size'"),
        ({"mitigations": "seperator"}, "unknown mitigation 'seperator': did you mean 'separator'"),
        ({"tasks": "figure-5a"}, "unknown task 'figure-5a'"),
        ({"lengths": True}, "expected lengths such as"),
        ({"dtypes": "bfloat16-kv"}, "unknown dtype of evaluate 'bfloat16-kv'"),
        ({"seeds": -1}, "seeds"),
        ({"measurements": {"name": "sensitivity", "linearisations": "fulll"}}, "linearisations.*'fulll': did you mean 'full'"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_with_the_nearest(
    change: dict[str, object], message: str
) -> None:
    with pytest.raises((ost.InputError, ost.mitigations.MitigationError), match=message) as refused:
        sweep_of({**SMALL, **change})
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("tasks: [copy-last", "expected YAML in UTF-8 at .*: ParserError: .*line 1, column 18"),
        ("tasks: copy-last\ntasks: copy-first\n", "'tasks' stands twice"),
        ("!!python/object/apply:os.system [true]\n", "could not determine a constructor"),
        ("- a\n- b\n", "valid dictionary"),
        (b"\xff\xfe", "expected YAML in UTF-8 at .*: UnicodeDecodeError"),
        (None, "expected YAML in UTF-8 at .*: No such file or directory"),
    ],
)
def test_what_is_no_sweep_is_refused_in_one_line(
    tmp_path: Path, content: Any, message: str
) -> None:
    file = tmp_path / "sweep.yaml"
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ost.InputError, match=message) as refused:
        read_sweep(file)
    assert "sweep.yaml" in str(refused.value)
    assert "\n" not in str(refused.value)


def keys(sweep: Sweep, checkpoint: str = "a", device: str = "cpu") -> list[str]:
    return [keyed(cell, checkpoint, device).key for cell in cells_of(sweep)]


def test_a_key_is_of_everything_that_defines_a_number_and_of_nothing_else() -> None:
    (first,) = keys(sweep_of(SMALL))
    changes = [
        {"lengths": "4:9"},
        {"texts": ["a"], "measurements": "sensitivity"},
        {"texts": ["b"], "measurements": "sensitivity"},
        {"texts": [{"id": 1, "text": "a"}], "measurements": "sensitivity"},
        {"tasks": "copy-first"},
        {"models": "another name, which its rows will have"},
        {"dtypes": "bfloat16"},
        {"mitigations": "hint"},
        {"measurements": {"name": "evaluate", "max_new_tokens": 9}},
        {"measurements": "sensitivity"},
        {"measurements": {"name": "sensitivity", "method": "estimate"}},
        {"measurements": {"name": "sensitivity", "method": "sketch", "cotangents": 9}},
        {"tasks": "count-ones", "seeds": 0},
    ]
    found = [key for change in changes for key in keys(sweep_of({**SMALL, **change}))]
    found = list(dict.fromkeys(found))  # the task is asked beside each text
    assert len(found) == len(changes)
    assert (
        len({first, *found, *keys(sweep_of(SMALL), "b"), *keys(sweep_of(SMALL), "a", "cuda")})
        == len(found) + 3
    )


def test_what_is_written_in_two_ways_is_one_cell() -> None:
    tasks = ["copy-last", "copy-last:uniform=false", " copy-last", "copy-last: uniform=true"]
    both = {
        **SMALL,
        "tasks": tasks,
        "mitigations": ["hint", " hint"],
        "measurements": ["evaluate", "collapse"],
    }
    found = [(cell.measurement, cell.task) for cell in cells_of(sweep_of(both))]
    drawn = "copy-last:uniform=True"
    assert sorted(found) == [
        (kind, task) for kind in ("collapse", "evaluate") for task in ("copy-last", drawn)
    ]


def test_a_plugin_without_an_equal_is_asked_by_the_text_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: Any
) -> None:
    """Its repr, which stands for it elsewhere, names nothing."""
    body = "class Plain(Mitigation):\n    name = 'plain'\n    hooks = lambda self, model: []\n"
    installed(tmp_path, "Plain", f"from ostools.mitigations import Mitigation\n{body}")
    monkeypatch.syspath_prepend(str(tmp_path))
    sweep = sweep_of({**SMALL, "mitigations": "plain"})
    assert [cell.mitigation for cell in cells_of(sweep)] == ["plain"]
    assert keys(sweep) == keys(sweep) != keys(sweep_of(SMALL))


def test_each_model_is_loaded_once_in_a_dtype() -> None:
    several = {"models": ["a", "b"], "dtypes": ["float32", "bfloat16"]}
    sweep = sweep_of({**SMALL, **several, "measurements": ["evaluate", "collapse", "sensitivity"]})
    loads = [to_load(cell) for cell in cells_of(sweep)]
    changes = [pair for index, pair in enumerate(loads) if index == 0 or loads[index - 1] != pair]
    assert len(changes) == len(set(changes)) == 4
    assert {to_load(cell)[1] for cell in cells_of(sweep) if cell.measurement == "collapse"} == {
        "float32"
    }


def test_a_task_that_draws_nothing_is_measured_under_one_seed() -> None:
    def seeds_of(**change: Any) -> list[int]:
        return [cell.seed for cell in cells_of(sweep_of({**SMALL, "seeds": [0, 1, 2], **change}))]

    assert seeds_of() == [0]
    assert seeds_of(tasks="copy-last:uniform=true") == [0, 1, 2]
    assert seeds_of(measurements={"name": "sensitivity", "method": "estimate"}) == [0, 1, 2]


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
    places = [[n, len(read.ids) - 1] for n, read in zip((2, 3), expected, strict=True)]
    read_of: Any = provenance_of([vars(provenance)]).parameters["read_at"]
    assert (read_of["position"], read_of["places"]) == (position or "answer", places)
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
    refused("changes nothing in float32, in which it is measured", measure, model, cell)
