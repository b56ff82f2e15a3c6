"""What rows say of where they come from, and files whose bytes are right but whose words are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ostools.results import Provenance
from ostools.runs import results
from ostools.runs.cells import Cell
from ostools.runs.reading import read
from ostools.runs.store import Store, Wanted, file_of

GIVEN = Provenance({"name": "made", "weight_hash": "ab"}, {}, None, {"torch": "1"})


def wanted(seed: int) -> Wanted:
    return Wanted(Cell("made", "copy-last", "float32", "none", seed, "behaviour", "{}", (3, 4)), f"{seed:016x}")


def keep(directory: Path, seed: int, given: Provenance = GIVEN, code: str = "c", checkpoint: str = "w") -> None:
    table = pd.DataFrame({"length": [3, 4], "value": 0.5})
    store, one = Store(directory), wanted(seed)
    with store.locked():
        store.ask([one])
        store.add(one, file_of(one, table, given, code=code, checkpoint=checkpoint))


def test_every_row_says_its_checkpoint_and_code(tmp_path: Path) -> None:
    keep(tmp_path, 0, checkpoint="a")
    keep(tmp_path, 1, checkpoint="b", code="d")
    table = results(tmp_path)
    assert table["checkpoint"].tolist() == ["a", "a", "b", "b"]
    assert table["code"].tolist() == ["c", "c", "d", "d"]
    assert table.columns.tolist()[:9] == [
        *("model", "task", "dtype", "mitigation", "seed", "measurement", "options", "checkpoint", "code")
    ]
    assert table.attrs["ostools"]["checkpoints"] == ["a", "b"]


def test_without_rows_the_columns_of_cells_are_there(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.locked():
        store.ask([wanted(0)])
    table = results(tmp_path)
    assert len(table) == 0
    keep(tmp_path, 0)
    assert table.columns.tolist() == results(tmp_path).columns.tolist()[:9]


@pytest.mark.parametrize(
    "forged",
    [{"model": "x"}, {"versions": ["torch"]}, {"parameters": None}, {"edits": "none"}, {"time": 3}, {"model": None}],
)
def test_forged_words_of_a_whole_file_are_left_out(tmp_path: Path, forged: dict[str, Any]) -> None:
    keep(tmp_path, 0)
    keep(tmp_path, 1, _Forged(GIVEN.model, {"forged": forged}, None, GIVEN.versions))
    said: list[str] = []
    found = read(tmp_path, say=said.append)
    assert [cell.state for cell in found.cells] == ["measured", "missing"]
    assert len(said) == 1
    assert "it is no cell of a sweep" in said[0]


class _Forged(Provenance):
    """Says something else than a run would."""

    def as_dict(self) -> dict[str, Any]:
        return {**super().as_dict(), **self.parameters["forged"]}
