"""Runs that die at every change on disk, meet a disk that refuses at each, and directories that hold what no run wrote.

Most are with an executor that measures nothing: what is tested is what a run does on disk. One test kills runs of a real model.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Generator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ostools.ground.errors import InputError
from ostools.measure.swept import Cell
from ostools.results import Provenance
from ostools.sweep import Sweep, executor, results, run, store, sweep_of
from ostools.sweep.executor import Bench, CellOutcome, Executor, Job, Terms
from stress import kills
from stress._runs import at_change, die, ready, strays
from tests.sets import quick as quick_set

SWEEP = {"tasks": ["copy-last", "copy-first", "count-ones"], "lengths": "3:4", "measurements": "evaluate"}


class Quick(Executor):
    """Gives rows that only the cell decides, and fails the cells of a task."""

    def __init__(self, failing: str = "") -> None:
        self.failing = failing

    def device(self, asked: str) -> str:
        return "cpu"

    def measure(self, jobs: Sequence[Job], terms: Terms) -> Generator[CellOutcome, None, None]:
        for job in jobs:
            cell = job.keyed_cell.cell
            if cell.task == self.failing:
                yield job.keyed_cell, "RuntimeError: planted"
                continue
            table = pd.DataFrame({**cell.columns, "length": cell.lengths, "value": [1 / 3] * len(cell.lengths)})
            yield job.keyed_cell, (table, Provenance.without_model())


def quick(directory: Path, failing: str = "", sweep: Sweep | None = None, **options: Any) -> Any:
    return run(sweep or sweep_of(SWEEP), directory, executor=Quick(failing), **options)


@pytest.fixture
def harmed(tmp_path: Path) -> Path:
    """A sweep with all that a run has to mend: a cell that failed, one broken on disk, half a file of a run that died."""
    directory = tmp_path / "harmed"
    quick(directory, failing="count-ones")
    victim = min((directory / "cells").iterdir())
    victim.write_bytes(victim.read_bytes()[:-7])
    (directory / "cells" / f".{victim.name[:40]}.abc.parquet").write_bytes(b"PAR1")
    (directory / ".sweep.json.abc.json").write_text("{")
    return directory


def table(directory: Path) -> pd.DataFrame:
    return results(directory).sort_values(by=["task", "length"], ignore_index=True)


def dies(source: str, directory: str, place: int) -> None:
    """In a process of its own: a run of `directory`, first a copy of `source`, killed at a change where there are so many."""
    if source:
        shutil.copytree(source, directory)
    with at_change(place, die):
        quick(Path(directory), retry_failed=True)


@pytest.mark.parametrize("start", ["new", "harmed"])
@pytest.mark.slow
def test_killed_at_any_change_on_disk_it_resumes_to_the_same_table(harmed: Path, tmp_path: Path, start: str) -> None:
    context, source = ready(), str(harmed) if start == "harmed" else ""
    quick(tmp_path / "whole")
    expected, place = table(tmp_path / "whole"), 0
    while start == "harmed" or place < 8:  # from there on a new directory is as the other
        out = tmp_path / f"{start}-{place}"
        process = context.Process(target=dies, args=(source, str(out), place))
        process.start()
        process.join()
        if process.exitcode == 0:
            break
        assert process.exitcode == -9
        if (out / "sweep.json").exists():  # what is shown of it meanwhile are rows of the whole one
            shown = results(out)
            assert shown.empty or len(shown.merge(expected)) == len(shown)
        done = quick(out, retry_failed=True)
        assert done.failed == ()
        pd.testing.assert_frame_equal(table(out), expected, check_exact=True)
        assert strays(out) == []
        assert len(list((out / "cells").iterdir())) == 3
        place += 1
    assert place > 25 or start == "new"


@pytest.mark.slow
def test_a_disk_that_refuses_any_change_ends_the_run_in_one_line(harmed: Path, tmp_path: Path) -> None:
    quick(tmp_path / "whole")
    expected, place = table(tmp_path / "whole"), 0

    def refuse() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    while True:
        out = tmp_path / str(place)
        shutil.copytree(harmed, out)
        try:
            with at_change(place, refuse) as met:
                quick(out, retry_failed=True)
        except InputError as error:
            said = str(error)
        else:
            if len(met) <= place:
                break
            # What is there already need not be made.
            assert met[place] == "mkdir"
            place += 1
            continue
        assert said.endswith(os.strerror(errno.ENOSPC))
        assert str(out) in said
        assert "\n" not in said
        quick(out, retry_failed=True)
        pd.testing.assert_frame_equal(table(out), expected, check_exact=True)
        assert strays(out) == []
        place += 1
    assert place > 25


def test_a_cell_that_cannot_be_read_today_is_left_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick(tmp_path / "out")
    expected, victim = table(tmp_path / "out"), min((tmp_path / "out" / "cells").iterdir())
    content, real = victim.read_bytes(), store.read_bytes

    def read(path: Path, limit: int) -> bytes:
        if path == victim:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(path, limit)

    said: list[str] = []
    with monkeypatch.context() as patched:
        patched.setattr(store, "read_bytes", read)
        assert quick(tmp_path / "out", say=said.append).measured == 1
    assert said == [f"{victim}: cannot be read: Input/output error; it is left out"]
    assert victim.read_bytes() == content
    # Its twin, measured meanwhile, is no second row.
    pd.testing.assert_frame_equal(table(tmp_path / "out"), expected, check_exact=True)


@pytest.mark.parametrize("place", quick_set(["sweep.json", ".lock", "cells", "failed"], "sweep.json", "cells"))
@pytest.mark.parametrize("kind", quick_set(["directory", "fifo", "link", "loop", "file"], "fifo", "link"))
def test_what_is_of_another_kind_is_refused_in_a_line_that_names_it(tmp_path: Path, place: str, kind: str) -> None:
    out = tmp_path / "out"
    quick(out)
    expected, odd = table(out), out / place
    if odd.is_dir():
        shutil.rmtree(odd)
    else:
        odd.unlink()
    if kind == "directory":
        odd.mkdir()
    elif kind == "fifo":
        os.mkfifo(odd)
    elif kind == "file":
        odd.write_text("")
    else:
        odd.symlink_to(odd if kind == "loop" else tmp_path / "nowhere")
    try:
        done = quick(out)
    except InputError as error:
        assert odd.name in str(error)  # noqa: PT017
        assert not (tmp_path / "nowhere").exists()
    else:
        assert (place, kind) in {("cells", "directory"), ("failed", "directory"), (".lock", "file"), (".lock", "fifo")}
        assert done.failed == ()
        pd.testing.assert_frame_equal(table(out), expected, check_exact=True)


@pytest.mark.parametrize("content", ['{"form": 2, "cells": []}', "[" * 10**5])
def test_a_manifest_that_cannot_be_read_loses_no_cell(tmp_path: Path, content: str) -> None:
    quick(tmp_path / "out")
    manifest, cells = tmp_path / "out" / "sweep.json", sorted((tmp_path / "out" / "cells").iterdir())
    expected = table(tmp_path / "out")
    manifest.write_text(content)
    for work in (quick, results):
        with pytest.raises(InputError, match=r"sweep\.json: expected what .* wrote in this version.*move it away"):
            work(tmp_path / "out")
    assert sorted((tmp_path / "out" / "cells").iterdir()) == cells
    manifest.unlink()
    assert quick(tmp_path / "out").present == 3
    pd.testing.assert_frame_equal(table(tmp_path / "out"), expected, check_exact=True)


def test_rows_that_no_table_can_hold_fail_their_cell_alone(tmp_path: Path) -> None:
    class Odd(Quick):
        def measure(self, jobs: Sequence[Job], terms: Terms) -> Generator[CellOutcome, None, None]:
            for one, found in super().measure(jobs, terms):
                assert not isinstance(found, str)
                odd = [{"a": 1}, 2] if one.cell.task == "count-ones" else 1.0
                yield one, (found[0].assign(answer=odd), found[1])

    done = run(sweep_of(SWEEP), tmp_path / "out", executor=Odd())
    assert (done.measured, len(done.failed)) == (2, 1)
    assert "the rows cannot be stored: ArrowInvalid" in done.failed[0]
    assert len(results(tmp_path / "out")) == 4


class PanicException(BaseException):
    """What a library in Rust raises where it panics: each has a class of its own, which is no Exception."""


@pytest.mark.parametrize("kind", [PanicException, SystemExit])
def test_what_a_library_or_a_plugin_raises_ends_one_cell_and_not_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    """While the key is checked, while the model is loaded, and while the cell is measured."""

    def raised_for(task: str, honest: Any) -> Any:
        def called(*args: Any) -> Any:
            if any(isinstance(part, Cell) and part.task == task for part in args):
                raise kind(f"planted in {task}")
            return honest(*args)

        return called

    monkeypatch.setattr(executor, "base_key", raised_for("copy-last", executor.base_key))
    monkeypatch.setattr(Bench, "_model", raised_for("copy-first", lambda bench, cell: None))
    monkeypatch.setattr(executor, "enough_threads", lambda models: nullcontext())
    monkeypatch.setattr(executor, "measure", raised_for("count-ones", None))
    done = run(sweep_of(SWEEP), tmp_path / "out")
    assert done.measured == 0
    for task, line in zip(SWEEP["tasks"], done.failed, strict=True):
        assert f"{kind.__name__}: planted in {task}" in line


def test_an_interrupt_is_no_failure_of_a_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*given: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(executor, "base_key", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(sweep_of(SWEEP), tmp_path / "out")
    assert not list((tmp_path / "out" / "failed").iterdir())


def test_cells_of_other_code_are_said_to_leave_the_table_and_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(tmp_path / "out")
    said: list[str] = []
    with monkeypatch.context() as patched:
        patched.setattr("ostools.sweep.cells.code_version", lambda: "other")
        assert quick(tmp_path / "out", say=said.append).measured == 3
        assert len(table(tmp_path / "out")) == 6
    assert said == [
        "3 cells were measured before with other code or versions, with another checkpoint or on another device: "
        "the tables leave them out now"
    ]
    assert quick(tmp_path / "out").present == 3
    assert len(table(tmp_path / "out")) == 6


def test_an_executor_is_closed_however_a_run_ends(tmp_path: Path) -> None:
    closed = []

    class Held(Quick):
        def measure(self, jobs: Sequence[Job], terms: Terms) -> Generator[CellOutcome, None, None]:
            try:
                yield from super().measure(jobs, terms)
            finally:
                closed.append(len(jobs))

    with pytest.raises(KeyboardInterrupt):
        run(sweep_of(SWEEP), tmp_path, executor=Held(), interrupted=lambda: True)
    assert closed == [3]


@pytest.mark.slow
def test_killed_at_random_moments_a_real_sweep_ends_with_the_uninterrupted_table() -> None:
    """Four of the hundred kills of `make stress`."""
    assert kills.run(4, seed=0) == 0
