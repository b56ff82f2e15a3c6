"""Sweeps of a real model: their numbers are those of the measurements, and what a key has to know
of; the commands; the table that they leave, whole and in part.
"""

import importlib
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import ostools as ost
from ostools.measure.position import read_at
from ostools.measure.swept import Cell
from ostools.results import Provenance
from ostools.sweep import results, run, sweep_of
from ostools.sweep.cells import MEASUREMENTS, KeyedCell, sources
from ostools.sweep.reading import read, result_of
from ostools.sweep.store import Store, file_of

SHORT = {"name": "evaluate", "max_new_tokens": 6}
"""A random model writes on to the end."""
ONE = {
    "tasks": "copy-last",
    "lengths": "3:5",
    "mitigations": "none",
    "dtypes": "float32",
    "measurements": SHORT,
}
"""One cell."""


def asked(written: Path, **changes: object) -> dict[str, Any]:
    return {"models": str(written), **ONE, **changes}


def test_the_numbers_are_those_of_the_measurements_themselves(
    written: Path, tmp_path: Path
) -> None:
    mitigations = ["none", "separator:every=2"]
    of_pairs = {"name": "collapse", "dtypes": "bfloat16"}
    sweep = sweep_of(asked(written, mitigations=mitigations, measurements=[SHORT, of_pairs]))
    assert run(sweep, tmp_path).failed == ()
    model, found = ost.load_model(written), results(tmp_path)
    for mitigation in mitigations:
        how: Any = {
            "lengths": [3, 4, 5],
            "mitigation": None if mitigation == "none" else mitigation,
        }
        tables = {
            "evaluate": ost.evaluate(model, "copy-last", max_new_tokens=6, **how).frame,
            "collapse": ost.collapse(model, "copy-last", dtypes=["bfloat16"], **how).frame,
        }
        for name, theirs in tables.items():
            columns = (
                ["log_probability", "answer"]
                if name == "evaluate"
                else ["site", "per", "norm", "mean", "noise"]
            )
            mine = found.query(f"measurement == '{name}' and mitigation == '{mitigation}'")[
                ["length", *columns]
            ]
            order = [column for column in ("length", "site", "per", "norm") if column in mine]
            mine, theirs = (rows.sort_values(order, ignore_index=True) for rows in (mine, theirs))
            expected: Any = theirs[["length", *columns]]
            pd.testing.assert_frame_equal(mine, expected, check_dtype=False)


@pytest.mark.parametrize("name", ["sensitivity", "bounds", "token-homogenization"])
def test_the_result_of_each_length_says_what_its_own_call_does(
    name: str, written: Path, tmp_path: Path
) -> None:
    """And where the mitigation changed nothing there."""
    model, function = ost.load_model(written), MEASUREMENTS[name].function
    short, long = ost.tasks.questions("copy-last", lengths=[3, 9])
    # It acts on the longer prompt alone, and there on the answer line that is begun.
    window = len(read_at(model, ost.measure.render_prompt(model, long.task, 9)).ids) - 1
    mitigation = f"sliding-window:window={window}"
    how = asked(written, lengths=[3, 9], mitigations=mitigation, measurements=name)
    assert run(sweep_of(how), tmp_path).failed == ()
    reading = read(tmp_path)
    for question, acting in ((short, None), (long, mitigation)):
        rows = reading.tables[name].query(f"length == {question.length}")
        result = result_of(reading, MEASUREMENTS[name], rows)
        own: Any = function(model, question, mitigation=acting)
        assert result.provenance.mitigation == (acting or f"{mitigation} (inactive)")
        for parameter in ("read_at", "beliefs"):
            ours, theirs = (
                json.loads(json.dumps(where.parameters.get(parameter)))
                for where in (result.provenance, own.provenance)
            )
            assert ours == theirs
        assert result.findings()[1:] == own.findings()[1:]


def test_a_seed_that_is_added_is_measured_and_labelled_as_itself(
    written: Path, tmp_path: Path
) -> None:
    """Resumed with two seeds more, a sweep holds each seed's own numbers: those that `evaluate`
    gives for that seed alone.
    """
    drawn = {"tasks": "count-ones-bernoulli", "lengths": 6}
    for seeds, measured in ((0, 1), ([0, 1, 2], 2)):
        assert run(sweep_of(asked(written, **drawn, seeds=seeds)), tmp_path).measured == measured
    table, model = results(tmp_path).set_index("seed"), ost.load_model(written)
    assert sorted(table.index) == [0, 1, 2]
    alone = [
        ost.evaluate(model, drawn["tasks"], lengths=[6], seeds=[seed], max_new_tokens=6).frame
        for seed in (0, 1, 2)
    ]
    expected = [float(frame["log_probability"].iloc[0]) for frame in alone]
    assert len(set(expected)) == 3
    assert table.loc[[0, 1, 2], "log_probability"].tolist() == expected


def test_the_file_of_a_plugin_is_in_the_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "plugged_in.py"
    file.write_text("from ostools.mitigations import Mitigation\nclass Mine(Mitigation): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    mine = importlib.import_module("plugged_in").Mine()
    before = sources([mine])
    assert len(before[0]) == 1
    file.write_text(file.read_text() + "# changed\n")
    assert sources([mine]) != before


def test_the_commands(
    run: Callable[..., tuple[int, str, str]], written: Path, tmp_path: Path
) -> None:
    def command(*words: str, code: int = 0, **changes: Any) -> tuple[str, str]:
        (tmp_path / "sweep.yaml").write_text(json.dumps(asked(written, **changes)))  # JSON is YAML
        found, shown, err = run("sweep", *words)
        assert found == code, err
        return " ".join(shown.split()), err

    both: Any = {"measurements": [SHORT, {"name": "collapse", "dtypes": "bfloat16"}]}
    shown, _ = command("run", "sweep.yaml", "--out", "out", "--dry-run", **both)
    assert "2 of 2 cells are missing" in shown
    assert not (tmp_path / "out").exists()
    assert (
        "2 cells measured, 0 were there before, 0 failed"
        in command("run", "sweep.yaml", "--out", "out", **both)[0]
    )
    assert "2 of 2 cells measured, 42 rows" in command("results", "out")[0]
    command("results", "out", "--out", "table.csv")
    assert len(pd.read_csv(tmp_path / "table.csv")) == 42
    shown, err = command(
        "run", "sweep.yaml", "--out", "failing", code=1, lengths=400, dtypes=["float32", "bfloat16"]
    )
    assert "2 failed" in shown
    assert err.count("\n") == 2
    assert "tokens" in err


GIVEN = Provenance({"name": "made", "weight_hash": "ab"}, {}, None, {"torch": "1"})
Change = Callable[[Any], Any]


def wanted(
    seed: int, measurement: str = "evaluate", lengths: tuple[int, ...] = (3, 4)
) -> KeyedCell:
    cell = Cell("made", "copy-last", "float32", "none", seed, measurement, "{}", lengths)
    return KeyedCell(cell, f"{seed + 100 * (measurement != 'evaluate'):016x}")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path)
    with made.locked():
        yield made


def add(
    store: Store,
    keyed_cell: KeyedCell,
    values: Any = 0.5,
    code: str = "c",
    checkpoint: str = "w",
) -> None:
    """Store rows of a cell: two a length, in no order of lengths; None: without values."""
    rows = pd.DataFrame({"length": np.repeat(keyed_cell.cell.lengths[::-1], 2)})
    rows = rows if values is None else rows.assign(value=values)
    store.add(keyed_cell, file_of(rows, GIVEN, code=code, checkpoint=checkpoint))


@pytest.fixture
def three(store: Store) -> Store:
    """Three cells, all measured."""
    store.ask([wanted(seed) for seed in range(3)])
    for seed in range(3):
        add(store, wanted(seed))
    return store


def test_a_file_whose_bytes_were_changed_costs_its_own_cell_only(three: Store) -> None:
    (broken,) = three.cells.glob(f"{1:016x}.*")
    content = bytearray(broken.read_bytes())
    content[len(content) // 2] ^= 1
    broken.write_bytes(content)
    said: list[str] = []
    found = read(three.directory, say=said.append)
    assert found.frame["seed"].tolist() == [0] * 4 + [2] * 4
    assert [cell.state for cell in found.cells] == ["measured", "missing", "measured"]
    (line,) = said
    assert line.startswith(f"{broken}: left out, as it cannot be read: ValueError: its bytes")
    add(three, wanted(1))
    assert len(results(three.directory)) == 12


def test_such_rows_are_not_stored(store: Store) -> None:
    table = pd.DataFrame({"length": [3, 4], "log_probability": [-1.0, float("-inf")]})
    with pytest.raises(
        ValueError,
        match="expected log_probability to be finite or missing",
    ):
        file_of(table, GIVEN, code="c", checkpoint="w")


# --- the table


def test_rows_stand_in_the_order_of_cells_and_lengths_whatever_that_of_the_files(
    store: Store,
) -> None:
    cells = [
        wanted(seed, kind, (3, 4, 5)) for seed in range(6) for kind in ("evaluate", "collapse")
    ]
    random.Random(0).shuffle(cells)
    store.ask(cells)
    for keyed_cell in sorted(cells, key=lambda cell: cell.key):
        add(store, keyed_cell, [0.5, None] * 3)
    found = results(store.directory)
    expected = [
        (cell.cell.measurement, cell.cell.seed, n)
        for cell in cells
        for n in (3, 4, 5)
        for _ in range(2)
    ]
    assert list(zip(found["measurement"], found["seed"], found["length"], strict=True)) == expected
    assert found["value"].isna().sum() == len(expected) / 2


def test_columns_that_one_file_lacks_or_has_as_another_number_are_joined(store: Store) -> None:
    cells = [wanted(seed) for seed in range(3)]
    store.ask(cells)
    for keyed_cell, values in zip(
        cells, (1.5, pd.array([2] * 4, dtype="Int64"), None), strict=True
    ):
        add(store, keyed_cell, values=values)
    assert results(store.directory).groupby("seed")["value"].max().tolist() == pytest.approx(
        [1.5, 2.0, np.nan], nan_ok=True
    )


def test_a_table_says_where_its_numbers_come_from(
    run: Callable[..., tuple[int, str, str]], tmp_path: Path, store: Store
) -> None:
    store.ask([wanted(seed) for seed in range(3)])
    for seed, code, checkpoint in ((0, "c", "a"), (1, "d", "b")):
        add(store, wanted(seed), code=code, checkpoint=checkpoint)
    table = results(store.directory)
    assert table[["checkpoint", "code"]].to_numpy().tolist() == [["a", "c"]] * 4 + [["b", "d"]] * 4
    told = table.attrs["ostools"]
    assert told["cells"] == {"asked": 3, "measured": 2, "failed": 0, "missing": 1}
    assert (told["models"], told["versions"]) == ([GIVEN.model], [{"torch": "1"}])
    assert (told["checkpoints"], told["time"]) == (["a", "b"], [GIVEN.time, GIVEN.time])
    assert run("sweep", "results", ".", "--out", "table.parquet")[0] == 0
    assert pd.read_parquet(tmp_path / "table.parquet").attrs["ostools"] == told
    code, shown, _ = run("sweep", "results", ".", "--json")
    assert (code, json.loads(shown)["provenance"]) == (0, told)
