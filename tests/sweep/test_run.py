"""Sweeps of a real model: their numbers are those of the measurements, and what a key has to know
of; the commands.
"""

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import ostools as ost
from ostools.sweep import results, run, sweep_of
from ostools.sweep.cells import sources

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
