"""Runs that die at every change on disk, meet a disk that refuses at each, and directories that
hold what no run wrote.

Most are with an executor that measures nothing: what is tested is what a run does on disk. One test
kills runs of a real model.
"""

import os
import shutil
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import ostools as ost
from ostools.models.files.sources import locate
from ostools.results import Provenance, write_atomically
from ostools.sweep import cells, results, run, store, sweep_of
from ostools.sweep.cells import KeyedCell
from ostools.sweep.executor import CellOutcome, Executor, Terms
from stress import kills
from stress._runs import at_change, die, ready, strays
from tests.checkpoints import refused

SWEEP = {
    "tasks": ["copy-last", "copy-first", "count-ones"],
    "lengths": "3:4",
    "measurements": "evaluate",
}


class Quick(Executor):
    """Gives rows that only the cell decides, and fails the cells of a task."""

    def __init__(self, failing: str = "") -> None:
        self.failing = failing

    def device(self, asked: str) -> str:
        return "cpu"

    def measure(
        self, cells: Sequence[KeyedCell], terms: Terms
    ) -> Generator[CellOutcome, None, None]:
        for keyed_cell in cells:
            cell = keyed_cell.cell
            if cell.task == self.failing:
                yield keyed_cell, "RuntimeError: planted"
                continue
            table = pd.DataFrame(
                {**cell.columns, "length": cell.lengths, "value": [1 / 3] * len(cell.lengths)}
            )
            yield keyed_cell, (table, Provenance.without_model())


def quick(directory: Path, failing: str = "", lengths: Any = "3:4", **options: Any) -> Any:
    return run(
        sweep_of(SWEEP | {"lengths": lengths}), directory, executor=Quick(failing), **options
    )


def table(directory: Path) -> pd.DataFrame:
    return results(directory).sort_values(by=["task", "length"], ignore_index=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    """The table of the uninterrupted sweep."""
    quick(directory := tmp_path_factory.mktemp("whole"))
    return table(directory)


def require_whole(directory: Path, whole: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(table(directory), whole, check_exact=True)


@pytest.fixture
def harmed(tmp_path: Path) -> Path:
    """A sweep with all that a run has to mend: a cell that failed, one broken on disk, half files
    of a run that died.
    """
    directory = tmp_path / "new" / "harmed"
    quick(directory, failing="count-ones")
    victim = min((directory / "cells").iterdir())
    victim.write_bytes(victim.read_bytes()[:-7])
    for half in (
        f"cells/.{victim.name[:30]}.x",
        f"failed/.{victim.name[:16]}.json.x",
        ".sweep.json.abc.json",
    ):
        (directory / half).write_text("{")
    return directory


def test_a_run_mends_what_was_harmed_and_measures_nothing_twice(
    harmed: Path, whole: pd.DataFrame
) -> None:
    said: list[str] = []
    done = quick(harmed, retry_failed=True, say=said.append)
    assert (done.measured, done.present, done.failed) == (2, 1, ())
    (line,) = said
    assert line.endswith("its bytes are not those that were written")
    require_whole(harmed, whole)
    assert strays(harmed) == []
    before = {path: path.stat().st_mtime_ns for path in (harmed / "cells").iterdir()}
    assert quick(harmed).present == 3
    assert {path: path.stat().st_mtime_ns for path in (harmed / "cells").iterdir()} == before


def test_a_table_has_what_was_asked_last_and_nothing_is_measured_twice(tmp_path: Path) -> None:
    said: list[str] = []
    for lengths, measured, rows in (("3:4", 3, [3, 4]), ("5:6", 3, [5, 6]), ("3:4", 0, [3, 4])):
        assert quick(tmp_path, lengths=lengths, say=said.append).measured == measured
        assert table(tmp_path)["length"].tolist() == rows * 3
    assert said == ["3 measured cells are not of this sweep as it is now: no table has them"] * 2


def test_a_cell_that_fails_is_recorded_and_stays_failed(tmp_path: Path) -> None:
    (failed,) = quick(tmp_path, "count-ones").failed
    said: list[str] = []
    again = quick(tmp_path, "count-ones", say=said.append)
    assert (again.measured, again.present, again.failed, said) == (
        0,
        2,
        (failed,),
        [f"failed before: {failed}"],
    )
    assert quick(tmp_path, "count-ones", retry_failed=True).failed == (failed,)
    assert quick(tmp_path, retry_failed=True).measured == 1
    assert len(table(tmp_path)) == 6
    assert not store.Store(tmp_path).failures()


def test_what_somebody_else_keeps_in_a_directory_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "cells" / ".git").mkdir(parents=True)
    theirs = [
        tmp_path / "cells" / "mine.parquet",
        tmp_path / "cells" / ".notes",
        tmp_path / "todo.json",
    ]
    for path in theirs:
        path.write_text("mine")
    refused("expected a new directory or that of a sweep", quick, tmp_path)
    (tmp_path / ".lock").touch()
    assert quick(tmp_path).measured == 3
    assert all(path.read_text() == "mine" for path in theirs)


def test_two_runners_on_one_directory(tmp_path: Path) -> None:
    with (
        store.Store(tmp_path).locked(),
        pytest.raises(ost.InputError, match="another run is writing there"),
    ):
        quick(tmp_path)


def dies(source: str, directory: str, place: int) -> None:
    """In a process of its own: a run of a copy of `source`, killed at a change."""
    shutil.copytree(source, directory)
    with at_change(place, die):
        quick(Path(directory), retry_failed=True)


@pytest.mark.slow
def test_killed_at_any_change_on_disk_it_resumes_to_the_same_table(
    harmed: Path, whole: pd.DataFrame, tmp_path: Path
) -> None:
    context, place = ready(), 0
    while True:
        out = tmp_path / str(place)
        process = context.Process(target=dies, args=(str(harmed), str(out), place))
        process.start()
        process.join()
        if process.exitcode == 0:
            break
        assert process.exitcode == -9
        if (out / "sweep.json").exists():  # what is shown of it meanwhile are rows of the whole one
            shown = results(out)
            assert shown.empty or len(shown.merge(whole)) == len(shown)
        assert quick(out, retry_failed=True).failed == ()
        require_whole(out, whole)
        assert (strays(out), len(list((out / "cells").iterdir()))) == ([], 3)
        place += 1
    assert place > 25


def test_a_manifest_that_cannot_be_read_loses_no_cell(tmp_path: Path, whole: pd.DataFrame) -> None:
    quick(tmp_path)
    (tmp_path / "sweep.json").write_text('{"form": 1, "cells": []}')
    refused(r"sweep\.json as .* writes it.*move it away", results, tmp_path)
    assert quick(tmp_path).present == 3
    require_whole(tmp_path, whole)


def test_rows_that_no_table_can_hold_fail_their_cell_alone(tmp_path: Path) -> None:
    class Odd(Quick):
        def measure(
            self, cells: Sequence[KeyedCell], terms: Terms
        ) -> Generator[CellOutcome, None, None]:
            for keyed_cell, rows in super().measure(cells, terms):
                assert not isinstance(rows, str)
                odd = [{"a": 1}, 2] if keyed_cell.cell.task == "count-ones" else 1.0
                yield keyed_cell, (rows[0].assign(answer=odd), rows[1])

    done = run(sweep_of(SWEEP), tmp_path, executor=Odd())
    assert (done.measured, len(done.failed)) == (2, 1)
    assert "the rows cannot be stored: ArrowInvalid" in done.failed[0]
    assert len(results(tmp_path)) == 4


def test_what_a_plugin_raises_ends_one_cell_and_not_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def planted(terms: Terms, keyed_cell: KeyedCell) -> None:
        if keyed_cell.cell.task == "copy-last":
            raise RuntimeError("planted")

    monkeypatch.setattr(Terms, "require_same", planted)
    done = run(sweep_of(SWEEP), tmp_path)
    assert done.measured == 2
    assert "RuntimeError: planted" in done.failed[0]


def test_an_interrupt_is_no_failure_of_a_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*given: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(Terms, "require_same", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(sweep_of(SWEEP), tmp_path)
    assert not list((tmp_path / "failed").iterdir())


@pytest.mark.slow
def test_killed_at_random_moments_a_real_sweep_ends_with_the_uninterrupted_table() -> None:
    """Three of the fifty kills of `make stress`."""
    assert kills.run(3, seed=0) == 0


def test_every_file_that_loading_reads_is_in_the_checkpoints_hash_with_its_name(
    directory: str, tmp_path: Path
) -> None:
    copy, hashes = tmp_path / "copy", []

    def hashed() -> None:
        hashes.append(cells.checkpoint_hash(locate(str(copy), None)))

    shutil.copytree(directory, copy)
    hashed()
    names = ["model.safetensors", "config.json", "tokenizer.json", "merges.txt", "tokenizer.model"]
    for name in (*names, "chat_template.jinja", "additional_chat_templates/default.jinja"):
        (copy / name).parent.mkdir(exist_ok=True)
        (copy / name).write_bytes(b"a")
        hashed()
    (copy / "merges.txt").rename(copy / "merges2.txt")  # no other file stands between the two names
    hashed()
    assert len(set(hashes)) == len(hashes)


def test_another_version_of_what_computes_is_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh, honest = cells.code_version.__wrapped__, cells.version
    keys = [fresh()]
    for package in cells._VERSIONS:
        versions = {package: "0.0"}
        monkeypatch.setattr(cells, "version", lambda name, v=versions: v.get(name) or honest(name))
        keys.append(fresh())
    assert len(set(keys)) == 1 + len(cells._VERSIONS)


def test_what_is_renamed_into_place_was_handed_to_the_disk_as_long_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_size))
    replace = Path.replace

    def renamed(part: Path, target: Path) -> Path:
        assert synced == [part.stat().st_size]
        return replace(part, target)

    monkeypatch.setattr(Path, "replace", renamed)
    write_atomically(tmp_path / "x", lambda part: part.write_bytes(b"content"))
    assert (tmp_path / "x").read_bytes() == b"content"
