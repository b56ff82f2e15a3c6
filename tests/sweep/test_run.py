"""Sweeps that are run, cut off, resumed, broken on disk and run twice: the table is always the uninterrupted one."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ostools.ground.errors import InputError
from ostools.sweep import plan, results, run, sweep_of
from ostools.sweep.executor import ThisProcess
from ostools.sweep.reading import read
from ostools.sweep.store import Store

SHORT = {"name": "evaluate", "max_new_tokens": 6}
"""A random model writes on to the end."""
TINY = {
    "tasks": ["copy-last", "count-ones"],
    "lengths": "3:5",
    "dtypes": ["float32", "bfloat16"],
    "mitigations": ["none", "separator:every=2"],
    "measurements": [SHORT, {"name": "collapse", "dtypes": "bfloat16"}],
}
CELLS = 12


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of its own: other tests may not share what a sweep hashes."""
    from tests.checkpoints import write_checkpoint

    return write_checkpoint(tmp_path_factory.mktemp("sweep") / "tiny", "gemma")


def asked(written: Path, **changes: object) -> dict[str, Any]:
    return {"models": str(written), **TINY, **changes}


def table(directory: Path) -> Any:
    """What must be the same however a sweep went: all but the seconds that it took."""
    return results(directory).drop(columns="seconds")


@pytest.fixture(scope="module")
def whole(written: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The uninterrupted sweep."""
    directory = tmp_path_factory.mktemp("whole") / "out"
    done = run(sweep_of(asked(written)), directory)
    assert (done.measured, done.present, done.failed) == (CELLS, 0, ())
    return directory


def test_the_numbers_are_those_of_the_measurements_themselves(whole: Path, written: Path) -> None:
    import ostools as ost

    model = ost.load_model(written)
    found = table(whole)
    answers = ost.evaluate(model, "count-ones", lengths=[3, 4, 5], max_new_tokens=6).frame
    mine = found.query(
        "measurement == 'evaluate' and task == 'count-ones' and dtype == 'float32' and mitigation == 'none'"
    )
    assert mine["log_probability"].tolist() == answers["log_probability"].tolist()
    assert mine["answer"].tolist() == answers["answer"].tolist()
    curve = ost.collapse(model, "copy-last", lengths=[3, 4, 5], dtypes=["bfloat16"]).frame
    cell = found.query("measurement == 'collapse' and task == 'copy-last' and mitigation == 'none'")
    kept = ["length", "site", "per", "norm"]
    tables: list[Any] = [cell, curve]
    mine, theirs = (found.sort_values(kept)[[*kept, "mean", "noise"]].reset_index(drop=True) for found in tables)
    pd.testing.assert_frame_equal(mine, theirs, check_dtype=False)


def test_the_same_command_computes_nothing_twice(whole: Path, written: Path, no_model: None, monkeypatch) -> None:
    monkeypatch.setattr("ostools.sweep.executor.load_model", lambda *_, **__: pytest.fail("loaded a model"))
    before = {path: path.stat().st_mtime_ns for path in (whole / "cells").iterdir()}
    done = run(sweep_of(asked(written)), whole)
    assert (done.measured, done.present) == (0, CELLS)
    assert {path: path.stat().st_mtime_ns for path in (whole / "cells").iterdir()} == before


def test_a_run_makes_its_directories_and_takes_away_what_a_killed_one_left(written: Path, tmp_path: Path) -> None:
    out = tmp_path / "a" / "b"
    small = asked(written, tasks="copy-last", measurements=SHORT, mitigations="none", dtypes="float32", lengths=3)
    run(sweep_of(small), out)
    names = [f"cells/.{16 * '0'}.{8 * '1'}.parquet.x", f"failed/.{16 * '0'}.{8 * '1'}.json.x", ".sweep.json.x"]
    for name in names:
        (out / name).touch()
    run(sweep_of(small), out)
    assert [name for name in names if (out / name).exists()] == []


def test_lengths_added_later_are_measured_alone(written: Path, tmp_path: Path) -> None:
    small = asked(written, tasks="copy-last", measurements=SHORT, mitigations="none", dtypes="float32")
    run(sweep_of({**small, "lengths": "3:4"}), tmp_path)
    done = run(sweep_of({**small, "lengths": "3:6"}), tmp_path)
    assert (done.measured, done.present) == (1, 0)
    kept = Store(tmp_path).stored()
    assert sorted(sorted(lengths) for files in kept.values() for lengths in files) == [[3, 4], [5, 6]]
    assert table(tmp_path)["length"].tolist() == [3, 4, 5, 6]
    run(sweep_of({**small, "lengths": "4:5"}), tmp_path)
    assert table(tmp_path)["length"].tolist() == [3, 4, 5, 6]


@pytest.fixture(scope="module")
def four(written: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The uninterrupted sweep of four cells, which tests spoil copies of."""
    directory = tmp_path_factory.mktemp("four") / "out"
    run(sweep_of(asked(written, tasks="copy-last", measurements=SHORT)), directory)
    return directory


@pytest.mark.parametrize("harm", ["cut", "changed"])
def test_a_file_broken_on_disk_is_found_said_and_measured_again(
    written: Path, four: Path, tmp_path: Path, harm: str
) -> None:
    sweep = sweep_of(asked(written, tasks="copy-last", measurements=SHORT))
    shutil.copytree(four, tmp_path, dirs_exist_ok=True)
    expected = table(tmp_path)
    victim = sorted((tmp_path / "cells").iterdir())[1]
    data = victim.read_bytes()
    harmed = {"cut": data[:-9], "changed": data[:99] + bytes([data[99] ^ 1]) + data[100:]}
    victim.write_bytes(harmed[harm])
    said: list[str] = []
    done = run(sweep, tmp_path, say=said.append)
    assert (done.measured, done.present) == (1, 3)
    assert len(said) == 1
    assert victim.name in said[0]
    pd.testing.assert_frame_equal(table(tmp_path), expected)


def test_a_cell_that_fails_is_recorded_and_the_others_go_on(written: Path, tmp_path: Path) -> None:
    one = asked(written, measurements="evaluate", mitigations="none", dtypes="float32")
    sweep = sweep_of({**one, "lengths": [3, 400]})
    done = run(sweep, tmp_path)
    assert len(done.failed) == 2
    assert all("tokens" in text for text in done.failed)
    assert [record.lengths for record in Store(tmp_path).failures()] == [(3, 400)] * 2
    assert results(tmp_path).empty
    said: list[str] = []
    again = run(sweep, tmp_path, say=said.append)
    assert (again.measured, again.present, len(again.failed)) == (0, 0, 2)
    assert all(line.startswith("failed before: evaluate of") for line in said)
    assert len(run(sweep, tmp_path, retry_failed=True).failed) == 2
    # Only the lengths that failed together are given up: those among them that can be measured, are.
    fine = run(sweep_of({**one, "lengths": 3}), tmp_path)
    assert (fine.measured, fine.failed) == (2, ())
    assert results(tmp_path)["length"].tolist() == [3, 3]


def test_what_a_plugin_imports_from_its_own_package_is_in_the_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import importlib

    from ostools.sweep.cells import _plugin_source

    package = tmp_path / "plugged_in"
    (package / "inner" / "__pycache__").mkdir(parents=True)
    (package / "inner" / "words.txt").write_text("a")
    (package / "__init__.py").write_text("")
    (package / "inner" / "words.py").write_text("WORD = 'a'\n")
    source = (
        "from mitigations import Mitigation\nfrom plugged_in.inner.words import WORD\nclass Mine(Mitigation): ...\n"
    )
    (package / "mine.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    kind = importlib.import_module("plugged_in.mine").Mine
    before = _plugin_source(kind)
    (package / "inner" / "__pycache__" / "words.pyc").write_bytes(b"compiled again")
    assert _plugin_source(kind) == before
    (package / "inner" / "words.py").write_text("WORD = 'b'\n")
    other = _plugin_source(kind)
    (package / "inner" / "words.txt").write_text("what it reads")
    assert [len(before), len({*before, *other, *_plugin_source(kind)})] == [1, 3]


def test_a_file_that_is_another_one_than_was_planned_with_is_a_failure(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changed, and gone, between the plan and the measurement."""
    files = [tmp_path / "changed.jsonl", tmp_path / "gone.jsonl"]
    for file in files:
        file.write_text(json.dumps({"ordered_kv_records": [["a", "b"]], "key": "a", "value": "b"}))
    tasks = [f"retrieve-at-position:records={file}" for file in files]
    sweep = sweep_of(
        asked(written, tasks=tasks, mitigations="none", dtypes="float32", measurements="evaluate", lengths=1)
    )
    found = plan(sweep, tmp_path / "out")
    files[0].write_text("{}")
    files[1].unlink()
    changed, gone = (said for _, said in ThisProcess().measure(found.pending, found.terms))
    assert "expected the plugins and files that the sweep was planned with, found others on " in str(changed)
    assert f"or a file, found '{files[1]}'" in str(gone)


@pytest.mark.parametrize("folder", ["cells", "failed"])
def test_a_folder_that_is_a_link_to_elsewhere_is_refused(written: Path, tmp_path: Path, folder: str) -> None:
    victim, out = tmp_path / "victim", tmp_path / "out"
    victim.mkdir()
    theirs = victim / f"{'0' * 16}.{'0' * 8}.{'0' * 16}.parquet"
    theirs.write_text("mine")
    out.mkdir()
    (out / ".lock").touch()
    (out / folder).symlink_to(victim)
    with pytest.raises(InputError, match="found a link to another"):
        run(sweep_of(asked(written)), out)
    assert [path.name for path in victim.iterdir()] == [theirs.name]


def test_what_somebody_else_keeps_in_a_directory_is_not_touched(written: Path, tmp_path: Path) -> None:
    (tmp_path / "cells" / ".git").mkdir(parents=True)
    theirs = [tmp_path / "cells" / "mine.parquet", tmp_path / "cells" / ".notes", tmp_path / "todo.json"]
    for path in theirs:
        path.write_text("mine")
    one = asked(written, tasks="copy-last", mitigations="none", dtypes="float32", measurements=SHORT)
    with pytest.raises(InputError, match="expected a new directory or that of a sweep"):
        run(sweep_of(one), tmp_path)
    (tmp_path / ".lock").touch()
    assert run(sweep_of(one), tmp_path).measured == 1
    assert all(path.read_text() == "mine" for path in theirs)


def test_two_runners_on_one_directory(written: Path, tmp_path: Path) -> None:
    sweep = sweep_of(asked(written))
    with Store(tmp_path).locked(), pytest.raises(InputError, match="another run is writing there"):
        run(sweep, tmp_path)


def sweep_file(tmp_path: Path, written: Path, **changes: object) -> Path:
    file = tmp_path / "sweep.yaml"
    file.write_text(json.dumps(asked(written, **changes)))  # JSON is YAML
    return file


def test_the_commands(run: Callable[..., tuple[int, str, str]], written: Path, tmp_path: Path) -> None:
    file = sweep_file(tmp_path, written, tasks="copy-last", mitigations="none", dtypes="float32")
    code, shown, _ = run("sweep", "run", str(file), "--out", "out", "--dry-run")
    assert (code, (tmp_path / "out").exists()) == (0, False)
    assert all(
        word in " ".join(shown.split()) for word in ("2 of 2 cells are missing; forecast", "GiB at most", "free")
    )
    code, shown, _ = run("sweep", "run", str(file), "--out", "out")
    assert code == 0
    assert "2 cells measured, 0 were there before, 0 failed" in shown
    code, shown, _ = run("sweep", "results", "out")
    assert code == 0
    assert "2 of 2 cells measured, 75 rows" in shown
    code, shown, _ = run("sweep", "results", "out", "--out", "table.csv")
    assert code == 0
    assert len(pd.read_csv(tmp_path / "table.csv")) == 75
    code, shown, _ = run("sweep", "results", "out", "--json")
    assert len(json.loads(shown)["rows"]) == 75
    file = sweep_file(tmp_path, written, tasks="copy-last", mitigations="none", lengths=400, measurements=SHORT)
    code, shown, err = run("sweep", "run", str(file), "--out", "failing")
    assert (code, err.count("\n")) == (1, 2)
    assert "2 failed" in shown
    assert "tokens" in err


STAGES = {
    "tasks": "count-ones-bernoulli:tidy=true",
    "lengths": "3:7",
    "dtypes": ["bfloat16"],
    "mitigations": "separator:every=2",
    "seeds": [0, 1],
    "measurements": {"name": "failure-stage", "sequences": 12},
}


@pytest.mark.slow
def test_fates_are_those_of_the_measurement_and_of_all_lengths_together(written: Path, tmp_path: Path) -> None:
    import ostools as ost
    from ostools.measure.probes.failure_stage import COLUMNS
    from ostools.reporting.sweep.report import sweep_report

    done = run(sweep_of(asked(written, **STAGES)), tmp_path / "out")
    assert done.failed == ()
    assert done.measured == 2
    found: Any = results(tmp_path / "out")
    alone: Any = ost.failure_stage(
        ost.load_model(written),
        STAGES["tasks"],
        lengths=range(3, 8),
        dtypes=STAGES["dtypes"],
        seeds=range(12, 24),
        mitigation=STAGES["mitigations"],
        random_weights=False,
    ).frame
    of_one = [name for name in COLUMNS if name not in ("task", "mitigation")]
    mine: Any = found[found["seed"] == 1][of_one].reset_index(drop=True)
    theirs: Any = alone[alone["mitigation"] != "none"][of_one].reset_index(drop=True)
    # The model is loaded once in float32 and cast there: the same bits.
    pd.testing.assert_frame_equal(mine, theirs, check_dtype=False)

    again = plan(sweep_of(asked(written, **STAGES)), tmp_path / "out")
    assert not again.pending
    more = plan(sweep_of(asked(written, **{**STAGES, "lengths": "3:8"})), tmp_path / "out")
    assert {job.keyed_cell.cell.lengths for job in more.pending} == {(3, 4, 5, 6, 7, 8)}  # and not 8 alone
    page = sweep_report(tmp_path / "out", tmp_path / "page.html", print).read_text()
    assert len(re.findall(r'id="failure-stage-\d', page)) >= 2
    assert "from what is stored" not in page


@pytest.mark.slow
def test_probes_and_readings_are_those_of_the_measurement(written: Path, tmp_path: Path) -> None:
    """Read back from a row a prompt, intervals and steps among them, in two dtypes at once."""
    import ostools as ost
    from ostools.reporting.sweep.report import sweep_report
    from ostools.sweep.measurements import MEASUREMENTS

    probed = {"name": "probe", "sequences": 12}
    both = {**STAGES, "lengths": "1:5", "dtypes": ["float32", "bfloat16"], "seeds": 1}
    sweep = sweep_of(
        asked(written, **{**both, "measurements": [probed, {"name": "probe-intervention", "sequences": 12}]})
    )
    done = run(sweep, tmp_path / "out")
    assert done.failed == ()
    assert done.measured == 4
    model = ost.load_model(written)
    how: Any = {"lengths": range(1, 6), "dtypes": both["dtypes"], "mitigation": both["mitigations"]}
    kept = read(tmp_path / "out", say=print)
    for name in ("probe", "probe-intervention"):
        theirs: Any = getattr(ost, name.replace("-", "_"))(model, both["tasks"], seeds=range(12, 24), **how)
        rows: Any = kept.rows(name)
        mine: Any = MEASUREMENTS[name].swept.read(rows, theirs.provenance)
        pd.testing.assert_frame_equal(mine.frame, theirs.frame)
        if name == "probe":
            pd.testing.assert_frame_equal(mine.steps, theirs.steps)
            two = rows.assign(mitigation=["none", *rows["mitigation"][1:]])
            with pytest.raises(InputError, match="expected rows of one mitigation, found 2"):
                MEASUREMENTS[name].swept.read(two, theirs.provenance)
        else:
            assert set(rows["over_lengths"]) == {"1, 2, 3, 4, 5"}
            assert set(rows["length"]) == {5}
    page = sweep_report(tmp_path / "out", tmp_path / "page.html", print).read_text()
    assert len(re.findall(r'id="probe-\d', page)) == 1
    assert len(re.findall(r'id="probe-intervention-\d', page)) == 1
    assert "from what is stored" not in page
