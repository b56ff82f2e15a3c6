"""The report on a sweep's cells: whole, in part, failed and hostile; nothing is measured for it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ostools as ost
from ostools.ground.errors import InputError
from ostools.measure.collapse.result import as_rows
from ostools.measure.swept import Cell
from ostools.results import Provenance
from ostools.sweep import run as run_sweep
from ostools.sweep import sweep_of
from ostools.sweep.cell_file import file_of
from ostools.sweep.cells import KeyedCell
from ostools.sweep.store import Store
from tests.reporting.made import HOSTILE, PROVENANCE, made_collapse

pytestmark = pytest.mark.slow  # a sweep is measured first
ASKED = {
    "tasks": ["copy-last"],
    "lengths": [3, 4],
    "mitigations": ["none", "sliding-window:window=4,sinks=1"],
    "measurements": [
        {"name": "evaluate", "max_new_tokens": 4},
        {"name": "evaluate", "max_new_tokens": 4, "temperature": 1.0, "samples": 2},
        {"name": "collapse", "dtypes": "bfloat16"},
        "sensitivity",
        {"name": "bounds", "variants": ["local", "theorem-5.1"]},
    ],
}


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.checkpoints import write_checkpoint

    home = tmp_path_factory.mktemp("report")
    model = str(write_checkpoint(home / "tiny", "gemma"))
    assert run_sweep(sweep_of({"models": model, **ASKED}), home / "out").failed == ()
    return home / "out"


@pytest.fixture(scope="module")
def page(sweep: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    return ost.report(run=sweep, out=tmp_path_factory.mktemp("page") / "r.html").read_text(encoding="utf-8")


def tables(page: str, caption: str) -> list[list[str]]:
    """The rows of the tables whose caption begins so."""
    found = []
    for table in re.findall(r"<table>.*?</table>", page, re.DOTALL):
        if caption in table:
            for row in re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)[1:]:
                found.append(re.findall(r"<bdi>(.*?)</bdi>", row, re.DOTALL))
    return found


def test_a_whole_sweep_has_a_section_a_measurement_and_says_that_it_is_complete(page: str) -> None:
    assert "Complete: all 10 cells are measured" in page
    assert "PARTIAL" not in page
    for name in ("findings", "origin", "evaluate", "collapse", "sensitivity", "bounds", "reading", "again"):
        assert page.count(f'<section id="{name}"') == 1
    assert "default-src" in page
    assert "ostools report --run" in page


def test_cells_of_several_options_are_never_pooled(page: str, sweep: Path) -> None:
    rows = tables(page, "Evaluate: every result")
    assert sorted(row[5].split(" of ")[1] for row in rows) == ["2", "2", "4", "4"]
    assert ost.sweep.results(sweep).query("measurement == 'evaluate'")["options"].nunique() == 2


def test_the_figures_are_those_of_the_rows(page: str, sweep: Path) -> None:
    """Under each mitigation, in the order in which they were asked."""
    table = ost.sweep.results(sweep)
    shown = tables(page, "Against the measured norms, copy-last")
    local = [row for row in shown if row[0] == "local"]
    for row, mitigation in zip(local, ("none", "sliding-window:window=4,sinks=1"), strict=True):
        here = table[table["mitigation"] == mitigation]
        keys = ["length", "position"]
        bound: Any = here[here["variant"] == "local"].set_index(keys)["value"]
        norm: Any = here[(here["measurement"] == "sensitivity") & (here["linearisation"] == "frozen")]
        above = (bound >= norm.set_index(keys)["operator_norm"] * (1 - 1e-4)).groupby("length").all()
        assert row[3] == f"{int(above.sum())} of 2 prompts"
    assert len(shown) == 2 * len(ASKED["measurements"][-1]["variants"])
    assert {row[3] for row in shown if row[1] != "certified bound"} == {"no claim"}


def test_nothing_is_measured_and_nothing_changed_in_the_directory(sweep: Path, tmp_path: Path, monkeypatch) -> None:
    for name in ("ostools.models.load_model", "ostools.sweep.executor.load_model"):
        monkeypatch.setattr(name, lambda *_, **__: pytest.fail("loaded a model"))
    before = {path: path.stat().st_mtime_ns for path in sweep.rglob("*")}
    ost.report(run=sweep, out=tmp_path / "r.html")
    assert {path: path.stat().st_mtime_ns for path in sweep.rglob("*")} == before


def cell(seed: int, measurement: str = "collapse", task: str = "figure-5a", model: str = "made") -> KeyedCell:
    return KeyedCell(Cell(model, task, "float32", "none", seed, measurement, "{}", (3, 4)), f"{seed:016x}")


def test_a_partial_sweep_says_so_first_with_what_failed_and_what_is_missing(tmp_path: Path) -> None:
    store = Store(tmp_path / "out")
    with store.locked():
        store.ask([cell(0), cell(1), cell(2)])
        store.fail(cell(1), "InputError: no room")
    page = ost.report(run=tmp_path / "out", out=tmp_path / "r.html").read_text(encoding="utf-8")
    assert "PARTIAL: 0 of 3 cells are measured, 1 failed, 2 are still to be measured." in page
    assert page.index("PARTIAL") < page.index("<section")
    assert tables(page, "Lengths that failed")[0][2] == "InputError: no room"


def test_hostile_names_and_errors_stay_text(tmp_path: Path) -> None:
    store = Store(tmp_path / "out")
    cells = [cell(seed, task=text, model=text) for seed, text in enumerate(HOSTILE)]
    result = made_collapse(lambda n: 1 / n, lengths=range(3, 5))
    given = Provenance(PROVENANCE.model, {"route": "prefix", "route_reason": "x"}, None, {})
    with store.locked():
        store.ask(cells)
        for one, text in zip(cells[:-2], HOSTILE, strict=False):
            rows: Any = as_rows(result).assign(task=text, model=text, mitigation="none", measurement="collapse")
            store.add(one, file_of(one, rows, given, code="c", checkpoint="w"))
        for one, text in zip(cells[-2:], HOSTILE, strict=False):
            store.fail(one, text)
    page = ost.report(run=tmp_path / "out", out=tmp_path / "r.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert "<img src=x" not in page
    assert not re.search(
        "[\x00-\x08\x0b-\x1f\x7f\u200f\u202e]", re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    )
    assert len(re.findall(r"<script>", page)) == 2  # the drawing library and ours


def test_a_broken_file_is_told_in_the_report(sweep: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(sweep, tmp_path / "out")
    victim = min((tmp_path / "out" / "cells").iterdir())
    victim.write_bytes(b"cut")
    said: list[str] = []
    page = ost.report(run=tmp_path / "out", out=tmp_path / "r.html", say=said.append).read_text(encoding="utf-8")
    assert len(said) == 1
    assert "PARTIAL: 9 of 10" in page
    assert victim.name in page


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--run", "none"), "found no sweep.json"),
        (("--run", ".", "--prompt", "x"), "leave out --prompt"),
        (
            ("--run", ".", "--model", "x", "--section", "collapse", "--lengths", "1:4"),
            "--model and --section and --lengths",
        ),
        (("--run", ".", "--out", "x.pdf"), "expected a name ending in .html"),
    ],
)
def test_what_cannot_be_reported_is_refused_in_one_line(
    run: Callable[..., tuple[int, str, str]], arguments: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    code, shown, err = run("report", *arguments)
    assert (code, shown, err.count("\n")) == (2, "", 1)
    assert words in err
    assert list(tmp_path.iterdir()) == []


def test_a_directory_in_which_nothing_was_asked_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path / "out")
    with store.locked():
        store.ask([])
    with pytest.raises(InputError, match="in which nothing was asked"):
        ost.report(run=tmp_path / "out", out=tmp_path / "r.html")
