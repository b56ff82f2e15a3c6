"""The report on cells of several checkpoints, seeds and qualities under one name: nothing is pooled, nothing lost unsaid."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostools.sweep
from ostools.measure.collapse.result import as_rows
from ostools.measure.swept import Cell
from ostools.reporting.sweep.sections import LOOKS, section_of
from ostools.results import Provenance
from ostools.sweep.cell_file import file_of
from ostools.sweep.cells import KeyedCell
from ostools.sweep.measurements import MEASUREMENTS
from ostools.sweep.reading import Reading, read
from ostools.sweep.store import Store
from tests.reporting.made import made_collapse, made_paths, made_sensitivity

ROUTE = {"route": "prefix", "route_reason": "x"}


def source(weights: str = "0", dtype: str = "float32") -> Provenance:
    return Provenance({"name": "made", "weight_hash": weights, "dtype": dtype}, ROUTE, None, {"torch": "1"})


def cell(measurement: str, seed: int = 0, dtype: str = "float32", lengths: tuple[int, ...] = (3,)) -> KeyedCell:
    base = f"{hash((measurement, seed, dtype)) % 2**63:016x}"
    return KeyedCell(Cell("made", "copy-last", dtype, "none", seed, measurement, "{}", lengths), base)


def keep(directory: Path, one: KeyedCell, table: Any, given: Provenance, checkpoint: str = "", code: str = "c") -> None:
    store = Store(directory)
    with store.locked():
        store.ask([one])
        store.add(one, file_of(one, table, given, code=code, checkpoint=checkpoint))


def norms(values: tuple[float, ...] = (1.0, 2.0, 3.0)) -> Any:
    return made_sensitivity({"frozen": values}).frame.assign(length=3)


def sums() -> Any:
    return made_paths({"local": (2.0, 3.0, 4.0)}).frame.assign(length=3)


def bounds(found: Reading) -> tuple[list[str], list[str]]:
    (section,) = section_of(found, MEASUREMENTS["bounds"])
    return [table.caption for table in section.parts[0].tables], list(section.parts[0].notes)


def page(directory: Path) -> str:
    return ostools.report(run=directory, out=directory / "r.html").read_text(encoding="utf-8")


def test_a_bound_is_not_held_against_the_norms_of_other_weights(tmp_path: Path) -> None:
    for seed, weights in enumerate(("A", "B")):  # the path sum of seed 1 is of A
        keep(tmp_path, cell("sensitivity", seed), norms(), source(weights))
        keep(tmp_path, cell("bounds", seed), sums(), source("A"))
    captions, notes = bounds(read(tmp_path))
    assert any(caption.startswith("Against the measured norms") for caption in captions)  # seed 0
    assert any(note.startswith("Not compared: ") for note in notes)
    assert "2 different checkpoints under one name" in page(tmp_path)


def test_norms_of_other_code_are_not_beside_a_bound(tmp_path: Path) -> None:
    keep(tmp_path, cell("sensitivity"), norms(), source())
    keep(tmp_path, cell("bounds"), sums(), source(), code="d")
    captions, notes = bounds(read(tmp_path))
    assert not any(caption.startswith("Against") for caption in captions)
    assert notes == ["Not compared: the norms beside the path sum are of another checkpoint, or of other code"]


def test_a_rank_correlation_that_there_is_not_is_a_dash(tmp_path: Path) -> None:
    flat = made_paths({"local": (4.0, 4.0, 4.0)}).frame.assign(length=3)
    keep(tmp_path, cell("sensitivity"), norms(), source())
    keep(tmp_path, cell("bounds"), flat, source())
    (section,) = section_of(read(tmp_path), MEASUREMENTS["bounds"])
    (table,) = [table for part in section.parts for table in part.tables if "over prompts" in table.caption]
    assert [row[-1] for row in table.rows] == ["–"]


def test_checkpoints_under_one_name_have_figures_of_their_own(tmp_path: Path) -> None:
    rows = as_rows(made_collapse(lambda n: 1 / n, lengths=range(3, 5)))
    for seed, checkpoint in enumerate(("first", "second")):
        one = cell("collapse", seed, lengths=(3, 4))
        keep(tmp_path, one, rows, source(checkpoint), checkpoint)
    (section,) = section_of(read(tmp_path), MEASUREMENTS["collapse"])
    table, *parts = section.parts
    assert len(table.tables[0].rows) == 2
    assert [part.title for part in parts] == [f"copy-last, made, checkpoint {name}" for name in ("first", "second")]
    assert all(part.figure and "checkpoint" in part.figure.caption for part in parts)
    assert "2 different checkpoints under one name" in page(tmp_path)


def test_two_dtypes_of_one_checkpoint_alarm_nobody(tmp_path: Path) -> None:
    for dtype in ("float32", "bfloat16"):
        keep(tmp_path, cell("sensitivity", dtype=dtype), norms(), source(f"of-{dtype}", dtype), "w")
    told = page(tmp_path)
    assert "under one name" not in told
    assert "float32 of-float32; bfloat16 of-bfloat16" in told


def test_the_longest_prompt_of_each_condition_is_drawn_with_its_least_seed(tmp_path: Path) -> None:
    for seed, dtype in ((0, "float32"), (1, "float32"), (1, "bfloat16")):
        keep(tmp_path, cell("sensitivity", seed, dtype), norms(), source(dtype=dtype))
    (section,) = section_of(read(tmp_path), MEASUREMENTS["sensitivity"])
    first, *parts = section.parts
    assert list(first.notes) == ["Drawn are 2 of 3 results."]
    assert [part.title for part in parts] == [
        f"copy-last, made, dtype {dtype}, seed {seed}" for dtype, seed in (("float32", 0), ("bfloat16", 1))
    ]
    assert all(part.figure for part in parts)


def test_a_norm_that_is_not_finite_costs_its_figure_only(tmp_path: Path) -> None:
    keep(tmp_path, cell("sensitivity"), norms((1.0, np.inf, 3.0)), source())
    keep(tmp_path, cell("bounds"), sums(), source())
    found = read(tmp_path)
    (section,) = section_of(found, MEASUREMENTS["sensitivity"])
    (part,) = section.parts
    assert part.figure is None
    assert "1 of 3 values are not finite" in part.findings[0]
    assert bounds(found)[1] == ["Not compared: values that are not finite"]
    assert '<section id="bounds"' in page(tmp_path)


def test_rows_that_are_none_of_their_measurement_cost_their_part_only(tmp_path: Path) -> None:
    keep(tmp_path, cell("sensitivity"), norms(), source())
    keep(tmp_path, cell("bounds"), sums().drop(columns="kind"), source())
    keep(tmp_path, cell("evaluate"), sums(), source())
    told = page(tmp_path)
    assert told.count("This could not be drawn from what is stored") >= 2
    assert '<section id="sensitivity"' in told


def test_failures_of_a_cell_that_misses_lengths_are_told(tmp_path: Path) -> None:
    one, store = cell("collapse", lengths=(3, 4, 5)), Store(tmp_path)
    with store.locked():
        store.ask([one])
        store.fail(KeyedCell(replace(one.cell, lengths=(4,)), one.base), "no room at all")
    told = page(tmp_path)
    assert "1 are still to be measured (1 of them failed at other lengths)" in told
    assert "no room at all" in told
    assert "Lengths that failed" in told


def test_a_measurement_that_has_no_look_of_its_own_is_shown_by_its_chart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(tmp_path, cell("bounds"), sums(), source())
    monkeypatch.delitem(LOOKS, "bounds")
    (section,) = section_of(read(tmp_path), MEASUREMENTS["bounds"])
    assert (section.title, len(section.parts)) == ("Bounds", 1)
    assert section.parts[0].figure is not None
