"""The report on a sweep's cells: whole, in part, failed and hostile; nothing is measured or pooled,
and nothing lost unsaid.
"""

import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostools as ost
from ostools.measure.swept import Cell
from ostools.reporting.sweep.report import section_of
from ostools.results import Provenance
from ostools.sweep.cells import MEASUREMENTS, KeyedCell
from ostools.sweep.reading import read, result_of
from ostools.sweep.store import Store, file_of
from tests.checkpoints import write_checkpoint
from tests.cli.asking import assert_refused
from tests.reporting.made import HOSTILE, made_collapse, made_paths, made_sensitivity


def source(weights: str = "0", dtype: str = "float32") -> Provenance:
    model = {"name": "made", "weight_hash": weights, "dtype": dtype}
    return Provenance(model, {"route": "prefix", "route_reason": "x"}, None, {"torch": "1"})


def cell(
    measurement: str,
    seed: int = 0,
    dtype: str = "float32",
    lengths: tuple[int, ...] = (3,),
    **names: Any,
) -> Any:
    base = f"{hash((measurement, seed, dtype)) % 2**63:016x}"
    keys: dict[str, Any] = {
        "model": "made",
        "task": "copy-last",
        "mitigation": "none",
        "options": "{}",
    } | names
    cell = Cell(dtype=dtype, seed=seed, measurement=measurement, lengths=lengths, **keys)
    return KeyedCell(cell, base)


def keep(
    directory: Path,
    one: KeyedCell,
    table: Any,
    given: Provenance | None = None,
    checkpoint: str = "",
    code: str = "c",
) -> None:
    store = Store(directory)
    before = store.planned_cells() if (directory / "sweep.json").exists() else []
    with store.locked():
        store.ask([*before, one])
        store.add(one, file_of(table, given or source(), code=code, checkpoint=checkpoint))


def norms(values: Sequence[float] = (1.0, 2.0, 3.0)) -> Any:
    return made_sensitivity({"frozen": values}).frame.assign(length=3)


def sums(values: Sequence[float] = (2.0, 3.0, 4.0)) -> Any:
    return made_paths({"local": values}).frame.assign(length=3)


def parts_of(directory: Path, measurement: str) -> Sequence[Any]:
    return section_of(read(directory), MEASUREMENTS[measurement]).parts


def page_of(directory: Path, **options: Any) -> str:
    return ost.report(run=directory, out=directory / "r.html", **options).read_text(
        encoding="utf-8"
    )


def test_bounds_are_a_block_a_condition_of_their_own_rows(tmp_path: Path) -> None:
    """Rows of two weights under one name are never one result."""
    for seed, weights in enumerate(("A", "B")):
        keep(tmp_path, cell("bounds", seed), sums(), source(weights), checkpoint=weights)
    _, first, second = parts_of(tmp_path, "bounds")
    assert [part.title for part in (first, second)] == [
        f"copy-last, made, seed {seed}, checkpoint {name}" for seed, name in enumerate("AB")
    ]
    assert "Certified" in first.findings[0]
    assert "2 different checkpoints under one name" in page_of(tmp_path)


def test_the_longest_prompt_of_each_dtype_is_drawn_with_its_least_seed_and_its_weights_named(
    tmp_path: Path,
) -> None:
    """Two dtypes of one checkpoint have weights of their own, and alarm nobody."""
    for seed, dtype in ((0, "float32"), (1, "float32"), (1, "bfloat16")):
        keep(tmp_path, cell("sensitivity", seed, dtype), norms(), source(f"of-{dtype}", dtype), "w")
    first, *parts = parts_of(tmp_path, "sensitivity")
    assert list(first.notes) == ["Drawn are 2 of 3 results."]
    assert [part.title for part in parts] == [
        f"copy-last, made, dtype {dtype}, seed {seed}"
        for dtype, seed in (("float32", 0), ("bfloat16", 1))
    ]
    assert all(part.figure for part in parts)
    page = page_of(tmp_path)
    assert "under one name" not in page
    assert "float32 of-float32; bfloat16 of-bfloat16" in page


def test_a_mitigation_that_changed_nothing_at_the_length_is_no_condition_of_its_own(
    tmp_path: Path,
) -> None:
    keep(tmp_path, cell("sensitivity"), norms())
    statuses = {"3": {"status": "inactive"}, "2": {"status": "active"}}
    under = replace(source(), parameters={"mitigation": "hint", "by_length": statuses})
    keep(tmp_path, cell("sensitivity", 1, mitigation="hint"), norms(), under)
    first, *parts = parts_of(tmp_path, "sensitivity")
    assert [part.title for part in parts] == [
        "copy-last, made, mitigation none, seed 0",
        "copy-last, made, mitigation hint (inactive), seed 1",
    ]
    assert [row[3] for row in first.tables[0].rows] == ["none", "hint (inactive)"]


def test_a_result_of_several_cells_says_what_all_of_them_say(tmp_path: Path) -> None:
    """A dtype that overflows in one; where the prompts of all are read; the most that differs."""
    place: Any = {"position": "answer", "chat": False, "line": "", "reasons": False}
    for seed, (dtype, overflow) in enumerate((("bfloat16", ()), ("float16", ("float16",)))):
        rows = made_collapse(lambda n: 1 / n, noise={dtype: 1e-9}, overflow=overflow).frame
        parameters = {
            "mitigation": "hint",
            **({"status": "inactive"} if seed == 0 else {}),
            "read_at": {**place, "tokens": [dtype], "places": [[1, 5 - seed], [128, 90 + seed]]},
            "difference_at_probed_lengths": {dtype: 0.5 + seed, "float64": 0.25 - seed / 8},
        }
        one = cell("collapse", dtype=dtype, lengths=tuple(range(1, 129)), mitigation="hint")
        keep(tmp_path, one, rows, replace(source(), parameters=parameters))
    sweep = read(tmp_path)
    result: Any = result_of(sweep, MEASUREMENTS["collapse"], sweep.tables["collapse"])
    assert result.provenance.mitigation == "hint"
    assert list(result.overflowing()) == ["float16"]
    about = result.provenance.parameters
    assert about["difference_at_probed_lengths"] == {
        "bfloat16": 0.5,
        "float16": 1.5,
        "float64": 0.25,
    }
    tokens = ["bfloat16", "float16"]
    assert about["read_at"] == {**place, "tokens": tokens, "places": [[1, 4], [128, 91]]}
    assert "float16 overflows on this model: not measured." in str(result.chart().to_dict())


def test_rows_that_cannot_be_drawn_cost_their_part_only(tmp_path: Path) -> None:
    """Norms that are not finite, rows without a column, rows of another measurement."""
    keep(tmp_path, cell("sensitivity"), norms((1.0, np.inf, 3.0)))
    _, part = parts_of(tmp_path, "sensitivity")
    assert part.figure is None
    assert "values that are not finite: nothing can be drawn" in part.notes[0]
    keep(tmp_path, cell("bounds", 1), sums().drop(columns="kind"))
    keep(tmp_path, cell("evaluate"), sums())
    page = page_of(tmp_path)
    assert page.count("This could not be drawn from what is stored") >= 2
    assert '<section id="sensitivity"' in page


def test_a_partial_sweep_says_so_first_with_what_failed_and_what_is_missing(tmp_path: Path) -> None:
    asked = [cell("collapse", seed) for seed in range(3)]
    store = Store(tmp_path)
    with store.locked():
        store.ask(asked)
        store.fail(asked[1], "InputError: no room")
    page = page_of(tmp_path)
    assert "PARTIAL: 0 of 3 cells are measured, 1 failed, 2 are still to be measured" in page
    assert page.index("PARTIAL") < page.index("<section")
    assert "ostools report --run" in page
    assert [row[1] for row in tables(page, "Cells that failed")] == ["InputError: no room"]


def test_hostile_names_and_errors_stay_text(tmp_path: Path) -> None:
    cells = [
        cell("collapse", seed, lengths=(3, 4), task=text, model=text)
        for seed, text in enumerate(HOSTILE)
    ]
    rows: Any = made_collapse(lambda n: 1 / n, lengths=range(3, 5)).frame
    for one, text in zip(cells[:2], HOSTILE, strict=False):
        keep(
            tmp_path,
            one,
            rows.assign(task=text, model=text, mitigation="none", measurement="collapse"),
        )
    store = Store(tmp_path)
    with store.locked():
        store.ask(cells)
        for one, text in zip(cells[2:], HOSTILE, strict=False):
            store.fail(one, text)
    page = page_of(tmp_path)
    assert not re.search("<script>alert|<img src=x", page)
    text = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u200f\u202e]", text)
    assert len(re.findall(r"<script>", page)) == 2  # the drawing library and ours


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--run none", "sweep.json"),
        ("--run . --prompt x", "leave out prompt"),
        ("--run . --quick", "leave out quick"),
        ("--run . --model x --device cpu", "leave out --model and --device"),
        ("--run . --out x.pdf", "expected a name ending in .html"),
    ],
)
def test_what_cannot_be_reported_is_refused_in_one_line(
    run: Any, arguments: str, words: str, tmp_path: Path
) -> None:
    assert_refused(run("report", *arguments.split()), words)
    assert list(tmp_path.iterdir()) == []


# --- a sweep that is measured first

ASKED = {
    "tasks": ["copy-last"],
    "lengths": [3, 4],
    "mitigations": ["none", "sliding-window:window=4,sinks=1"],
    "measurements": [
        {"name": "evaluate", "max_new_tokens": 4},
        {"name": "evaluate", "max_new_tokens": 6},
        {"name": "collapse", "dtypes": "bfloat16"},
        "sensitivity",
        {"name": "bounds", "variants": ["local", "theorem-5.1"]},
    ],
}


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("report")
    model = str(write_checkpoint(home / "tiny", "gemma"))
    assert ost.sweep.run(ost.sweep.sweep_of({"models": model, **ASKED}), home / "out").failed == ()
    return home / "out"


def tables(page: str, caption: str) -> list[list[str]]:
    """The rows of the tables whose caption begins so."""
    chosen = [
        table for table in re.findall(r"<table>.*?</table>", page, re.DOTALL) if caption in table
    ]
    rows = [row for table in chosen for row in re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)[1:]]
    return [re.findall(r"<bdi>(.*?)</bdi>", row, re.DOTALL) for row in rows]


@pytest.mark.slow
def test_a_whole_sweep_has_a_section_a_measurement_with_the_figures_of_its_rows(
    sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under each mitigation, in the order in which they were asked; nothing is measured, nothing
    changed, nothing pooled.
    """
    monkeypatch.setattr("ostools.models.load_model", lambda *_, **__: pytest.fail("loaded a model"))
    before = {path: path.stat().st_mtime_ns for path in sweep.rglob("*")}
    page = ost.report(run=sweep, out=tmp_path / "r.html").read_text(encoding="utf-8")
    assert {path: path.stat().st_mtime_ns for path in sweep.rglob("*")} == before
    assert "Complete: all 10 cells are measured" in page
    assert "PARTIAL" not in page
    for name in (
        "findings",
        "origin",
        "evaluate",
        "collapse",
        "sensitivity",
        "bounds",
        "reading",
        "again",
    ):
        assert page.count(f'<section id="{name}"') == 1
    assert [" of 2 " in row[5] for row in tables(page, "Evaluate: every result")] == [True] * 4


@pytest.mark.slow
def test_a_broken_file_is_told_in_the_report(sweep: Path, tmp_path: Path) -> None:
    shutil.copytree(sweep, tmp_path / "out")
    victim = min((tmp_path / "out" / "cells").iterdir())
    victim.write_bytes(b"cut")
    said: list[str] = []
    page = page_of(tmp_path / "out", say=said.append)
    assert len(said) == 1
    assert "PARTIAL: 9 of 10" in page
    assert victim.name in page
