"""The table of a sweep, read whole, in part and broken; and a run that is followed by another process."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pandas as pd
import pytest

from ostools.results import Provenance
from ostools.runs import following, results
from ostools.runs.cell_file import file_of
from ostools.runs.cells import KeyedCell
from ostools.runs.measurements.record import Cell
from ostools.runs.reading import read
from ostools.runs.store import Store

MODEL = {"name": "made", "weight_hash": "ab", "dtype": "float32", "device": "cpu"}
PROVENANCE = Provenance(MODEL, {}, None, {"torch": "1"})


def wanted(seed: int, measurement: str = "evaluate", lengths: tuple[int, ...] = (3, 4, 5)) -> KeyedCell:
    cell = Cell("made", "copy-last", "float32", "none", seed, measurement, "{}", lengths)
    return KeyedCell(cell, f"{seed:08x}{len(measurement):08x}")


def rows(one: KeyedCell, lengths: tuple[int, ...], value: object = 0.5) -> Any:
    """Two rows a length, in no order of lengths."""
    table = pd.DataFrame(
        {"length": [n for n in reversed(lengths) for _ in range(2)], "value": [value, None] * len(lengths)}
    )
    for index, (name, given) in enumerate(one.cell.columns.items()):
        table.insert(index, name, given)
    return table


def keep(store: Store, one: KeyedCell, lengths: tuple[int, ...] | None = None, table: Any = None) -> None:
    """Store rows of a cell as a run would, at some of its lengths."""
    part = KeyedCell(replace(one.cell, lengths=lengths or one.cell.lengths), one.base)
    store.add(
        part,
        file_of(part, rows(one, part.cell.lengths) if table is None else table, PROVENANCE, code="c", checkpoint="w"),
    )


@pytest.fixture
def store(tmp_path: Path) -> Any:
    made = Store(tmp_path)
    with made.locked():
        yield made


def test_rows_stand_in_the_order_of_cells_and_lengths_whatever_that_of_the_files(store: Store) -> None:
    cells = [wanted(seed, kind) for seed in range(20) for kind in ("evaluate", "collapse")]
    random.Random(0).shuffle(cells)
    store.ask(cells)
    for one in sorted(cells, key=lambda each: each.base):
        keep(store, one, (5,))
        keep(store, one, (3, 4))
    found = results(store.directory)
    expected = [(one.cell.measurement, one.cell.seed, n) for one in cells for n in one.cell.lengths for _ in range(2)]
    assert list(zip(found["measurement"], found["seed"], found["length"], strict=True)) == expected
    assert found["value"].isna().sum() == len(expected) / 2


def test_a_length_in_two_files_is_read_once_and_one_not_asked_for_not_at_all(store: Store) -> None:
    one = wanted(0, lengths=(3, 4, 5))
    store.ask([wanted(0, lengths=(4, 5))])
    keep(store, one, (3, 4))
    keep(store, one, (4, 5))
    assert results(store.directory)["length"].tolist() == [4, 4, 5, 5]


def test_columns_that_one_file_lacks_or_has_as_another_number_are_joined(store: Store) -> None:
    cells = [wanted(seed) for seed in range(3)]
    store.ask(cells)
    keep(store, cells[0], table=rows(cells[0], (3, 4, 5), 1.5))
    keep(store, cells[1], table=rows(cells[1], (3, 4, 5), 2).astype({"value": "Int64"}))
    keep(store, cells[2], table=rows(cells[2], (3, 4, 5)).drop(columns="value"))
    found = results(store.directory)
    assert found.groupby("seed")["value"].max().tolist()[:2] == [1.5, 2.0]
    assert found.query("seed == 2")["value"].isna().all()


def test_what_there_is_of_every_cell(store: Store) -> None:
    done, part, failed, halves, new = (wanted(seed) for seed in range(5))
    store.ask([done, part, failed, halves, new])
    keep(store, done)
    keep(store, part, (3,))
    keep(store, halves, (3,))
    for one, lengths in ((failed, (3, 4, 5)), (halves, (4,)), (halves, (5,))):
        store.fail(KeyedCell(replace(one.cell, lengths=lengths), one.base), "no")
    found = read(store.directory)
    assert [cell.state for cell in found.cells] == ["measured", "missing", "failed", "failed", "missing"]
    assert [cell.missing for cell in found.cells] == [(), (4, 5), (), (), (3, 4, 5)]
    assert [len(cell.failures) for cell in found.cells] == [0, 0, 1, 2, 0]


def test_a_table_says_where_its_numbers_come_from(
    run: Callable[..., tuple[int, str, str]], tmp_path: Path, store: Store
) -> None:
    cells = [wanted(0), wanted(1)]
    store.ask(cells)
    keep(store, cells[0])
    told = results(store.directory).attrs["ostools"]
    assert told["cells"] == {"asked": 2, "measured": 1, "failed": 0, "missing": 1}
    assert (told["models"], told["versions"]) == ([MODEL], [{"torch": "1"}])
    assert told["time"] == [PROVENANCE.time, PROVENANCE.time]
    assert run("sweep", "results", ".", "--out", "table.parquet")[0] == 0
    assert pd.read_parquet(tmp_path / "table.parquet").attrs["ostools"] == told
    assert run("sweep", "results", ".", "--out", "table.json")[0] == 0
    assert json.loads((tmp_path / "table.json").read_text())["provenance"] == told
    code, shown, _ = run("sweep", "results", ".", "--json")
    assert (code, json.loads(shown)["provenance"]) == (0, told)


def test_a_run_is_counted_while_its_files_appear(store: Store) -> None:
    watch = following.Following(store.directory)  # before anything is asked: the lock is there
    assert (watch.look().cell_count, watch.look().over) == (0, False)
    one, other = wanted(0), wanted(1)
    store.ask([one, other])
    assert (watch.look().remaining_count, watch.look().running) == (2, True)
    keep(store, one, (3, 4))
    assert watch.look().measured == 0  # half of its lengths
    keep(store, one, (5,))
    store.fail(other, "no\x1b[31m")
    seen = watch.look()
    assert (seen.measured, seen.failed, seen.remaining_count) == (1, 1, 0)
    assert not seen.over  # the run still holds the directory, and may try again
    keep(store, other)
    assert (watch.look().measured, watch.look().failures) == (2, ())


def test_a_look_reads_new_files_only_and_touches_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [wanted(seed) for seed in range(5)]
    store.ask(cells)
    for one in cells[:4]:
        keep(store, one)
    (store.cells / next(store.cells.iterdir()).name).write_bytes(b"")  # broken: to be measured again
    read_now: list[Path] = []
    real = following.parquet.read_schema
    monkeypatch.setattr(following.parquet, "read_schema", lambda path: (read_now.append(path), real(path))[1])
    watch, before = following.Following(store.directory), sorted(store.directory.rglob("*"))
    assert watch.look().measured == 3
    assert len(read_now) == 4
    keep(store, cells[4])
    assert watch.look().measured == 4
    assert len(read_now) == 5
    assert len(sorted(store.directory.rglob("*"))) == len(before) + 1


def made_sweep(directory: Path, failing: bool) -> None:
    store = Store(directory)
    with store.locked():
        store.ask([wanted(0), wanted(1)])
        keep(store, wanted(0))
        if failing:
            store.fail(wanted(1), "ValueError: no\nroom \x1b[31m")
        else:
            keep(store, wanted(1))


@pytest.mark.parametrize("failing", [False, True])
def test_following_ends_by_itself_and_its_exit_code_says_how(
    run: Callable[..., tuple[int, str, str]], tmp_path: Path, failing: bool
) -> None:
    made_sweep(tmp_path, failing)
    code, shown, err = run("sweep", "results", ".", "--follow")
    assert (code, shown.count("\n")) == (int(failing), 1)
    assert shown.startswith("1 of 2 cells measured, 1 failed" if failing else "2 of 2 cells measured")
    assert err.count("\n") == int(failing)
    assert "\x1b" not in shown + err
    code, shown, _ = run("sweep", "results", ".", "--follow", "--json")
    last = json.loads(shown.splitlines()[-1])
    assert (code, last["measured"], last["failed"], last["left"]) == (int(failing), 2 - failing, int(failing), 0)


def test_a_run_that_died_is_not_waited_for_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from ostools.cli.verbs.sweeps import GLOBALS, follow_run

    for name in ("quiet", "json"):
        monkeypatch.setattr(GLOBALS, name, False)
    store = Store(tmp_path)
    with store.locked():
        store.ask([wanted(0), wanted(1), wanted(2)])
        keep(store, wanted(0))
    now, resumed = [0.0], iter([wanted(1), wanted(2)])

    def sleep(seconds: float) -> None:
        now[0] += 30.0
        if now[0] > 60:
            keep(store, next(resumed))

    assert follow_run(tmp_path, sleep=sleep, clock=lambda: now[0]) is False
    out, err = capfd.readouterr()
    assert err.count("no process seen from here holds") == 1
    assert out.splitlines() == [
        "1 of 3 cells measured",
        "2 of 3 cells measured; 0.667 cells a minute, about 90 s left",
        "3 of 3 cells measured",
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [((".",), "found no sweep.json"), (("none",), "found no sweep.json"), ((".", "--out", "x.csv"), "one of the two")],
)
def test_following_nothing_is_refused(
    run: Callable[..., tuple[int, str, str]], arguments: tuple[str, ...], words: str
) -> None:
    code, shown, err = run("sweep", "results", *arguments, "--follow")
    assert (code, shown, err.count("\n")) == (2, "", 1)
    assert words in err


def test_a_file_that_could_not_be_read_for_a_moment_is_read_again(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.locked():
        store.ask([wanted(0)])
        keep(store, wanted(0))
        watch = following.Following(tmp_path)
        with mock.patch.object(following.parquet, "read_schema", side_effect=OSError("Input/output error")):
            assert watch.look().measured == 0
        assert watch.look().measured == 1


@pytest.mark.slow
def test_a_run_of_another_process_is_followed_to_its_end(directory: str, tmp_path: Path) -> None:
    file, out = tmp_path / "sweep.yaml", tmp_path / "out"
    asked = {"models": directory, "tasks": ["copy-last", "count-ones"], "lengths": [3, 4], "measurements": "evaluate"}
    file.write_text(json.dumps({**asked, "seeds": 0, "dtypes": ["float32", "bfloat16"]}))
    command = [sys.executable, "-c", "from ostools.cli import main; main()"]
    with subprocess.Popen([*command, "sweep", "run", str(file), "--out", str(out), "--quiet"]) as running:
        until = time.monotonic() + 300
        while not (out / ".lock").exists() and time.monotonic() < until:
            time.sleep(0.02)
        followed = subprocess.run(
            [*command, "sweep", "results", str(out), "--follow", "--json"],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert running.wait(60) == 0
    seen = [json.loads(line) for line in followed.stdout.splitlines()]
    assert (followed.returncode, followed.stderr) == (0, "")
    assert (seen[-1]["cell_count"], seen[-1]["measured"], seen[-1]["failed"]) == (4, 4, 0)
    assert [look["measured"] for look in seen] == sorted(look["measured"] for look in seen)
