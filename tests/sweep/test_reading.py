"""The table of a sweep, whole and in part; what rows say of where they come from; and files whose
bytes are right but whose words are not."""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ostools.measure.swept import Cell
from ostools.results import Provenance
from ostools.sweep import results
from ostools.sweep.cells import KeyedCell
from ostools.sweep.reading import read
from ostools.sweep.store import Store, file_of

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
