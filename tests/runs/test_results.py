"""The table of a sweep, read whole and in part."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ostools.measure.swept import Cell
from ostools.results import Provenance
from ostools.runs import results
from ostools.runs.cell_file import file_of
from ostools.runs.cells import KeyedCell
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
    cells = [wanted(seed, kind) for seed in range(6) for kind in ("evaluate", "collapse")]
    random.Random(0).shuffle(cells)
    store.ask(cells)
    for one in sorted(cells, key=lambda each: each.base):
        keep(store, one, (5,))
        keep(store, one, (3, 4))
    found = results(store.directory)
    expected = [(one.cell.measurement, one.cell.seed, n) for one in cells for n in one.cell.lengths for _ in range(2)]
    assert list(zip(found["measurement"], found["seed"], found["length"], strict=True)) == expected
    assert found["value"].isna().sum() == len(expected) / 2


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
