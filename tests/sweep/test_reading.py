"""The table of a sweep, whole and in part; what rows say of where they come from; and files whose bytes are right but whose
words are not."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from ostools.ground.errors import InputError
from ostools.measure.swept import Cell
from ostools.reporting.report.report import report
from ostools.results import Provenance
from ostools.sweep import results
from ostools.sweep.cell_file import file_hash, file_of
from ostools.sweep.cells import KeyedCell
from ostools.sweep.reading import read
from ostools.sweep.store import Store

GIVEN = Provenance({"name": "made", "weight_hash": "ab"}, {}, None, {"torch": "1"})


def wanted(seed: int, measurement: str = "evaluate", lengths: tuple[int, ...] = (3, 4)) -> KeyedCell:
    cell = Cell("made", "copy-last", "float32", "none", seed, measurement, "{}", lengths)
    return KeyedCell(cell, f"{seed + 100 * (measurement != 'evaluate'):016x}")


three = partial(wanted, lengths=(3, 4, 5))


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


@pytest.mark.parametrize(
    "forged",
    [{"model": "x"}, {"code": "\ud800"}],
)
def test_forged_words_of_a_whole_file_are_left_out(tmp_path: Path, forged: dict[str, Any]) -> None:
    keep(tmp_path, 0)
    keep(tmp_path, 1, _Forged(GIVEN.model, {"forged": forged}, None, GIVEN.versions))
    said: list[str] = []
    found = read(tmp_path, say=said.append)
    assert [cell.state for cell in found.cells] == ["measured", "missing"]
    assert len(said) == 1
    assert "it is not a cell of a sweep" in said[0]


class _Forged(Provenance):
    """Says something else than a run would."""

    def as_dict(self) -> dict[str, Any]:
        return {**super().as_dict(), **self.parameters["forged"]}


def manifest(directory: Path, **change: Any) -> None:
    """The manifest with other words in its last cell."""
    path = directory / "sweep.json"
    held = json.loads(path.read_text(encoding="utf-8"))
    held["cells"][-1]["cell"].update(change)
    held["cells"][-1].update({name: value for name, value in change.items() if name == "base"})
    path.write_text(json.dumps(held), encoding="utf-8")


@pytest.mark.parametrize(
    "change",
    [
        {"model": "\ud800a"},
        {"options": '{"a": NaN}'},
        {"lengths": []},
        {"lengths": [-1]},
        {"lengths": [3, 2**31]},
        {"base": "/etc/*"},
    ],
)
def test_a_manifest_that_no_table_could_say_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    keep(tmp_path, 0)
    keep(tmp_path, 1)
    manifest(tmp_path, **change)
    for reads in (results, lambda place: report(run=place, out=place / "r.html")):
        with pytest.raises(
            InputError, match=r"sweep\.json: expected what `ostools sweep run` wrote.*found something else"
        ):
            reads(tmp_path)
    assert not (tmp_path / "r.html").exists()


def column(kind: Any, values: list[Any]) -> Callable[[Any], Any]:
    """The table with a column of this kind after the others."""
    return lambda table: table.append_column("token", pa.array(values, kind))


def no_text(table: Any) -> Any:
    """A column of text whose bytes are no UTF-8: Parquet holds them as they are."""
    bad = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.array([0, 1, 2], pa.int32()).buffers()[1], pa.py_buffer(b"\xff\xfe")]
    )
    return table.append_column("token", bad)


def twice(table: Any) -> Any:
    return table.append_column("model", pa.array(["a", "a"])).append_column("model", pa.array(["b", "b"]))


def an_index(table: Any) -> Any:
    metadata = {**json.loads(table.schema.metadata[b"pandas"]), "index_columns": ["value"]}
    return table.replace_schema_metadata({**table.schema.metadata, b"pandas": json.dumps(metadata)})


BROKEN = {
    "an index": an_index,
    "no text": no_text,
    "twice": twice,
    "dates": column(pa.date32(), [2**31 - 1, 0]),
}


def spoil(directory: Path, seed: int, change: Callable[[Any], Any], **how: Any) -> Path:
    """The file of a cell with another table, under the hash of its bytes."""
    (path,) = (directory / "cells").glob(f"{seed:016x}.*")
    table = parquet.ParquetFile(path).read()
    to = pa.BufferOutputStream()
    parquet.write_table(change(table), to, **how)
    content = to.getvalue().to_pybytes()
    path.unlink()
    stem = path.name.rsplit(".", 2)[0]
    (changed := path.with_name(f"{stem}.{file_hash(content)}.parquet")).write_bytes(content)
    return changed


@pytest.mark.parametrize("change", BROKEN.values(), ids=BROKEN)
def test_a_file_that_pandas_cannot_hold_costs_its_own_cell_only(tmp_path: Path, change: Callable[[Any], Any]) -> None:
    for seed in (0, 1):
        keep(tmp_path, seed)
    broken, said = spoil(tmp_path, 1, change), []
    table = results(tmp_path, say=said.append)
    assert table["seed"].tolist() == [0] * 2
    assert said == [f"{broken}: it is not a cell of a sweep; it is left out"]
    assert report(run=tmp_path, out=tmp_path / "r.html").exists()
    store = Store(tmp_path, said.append)
    with store.locked():  # the next run finds it missing
        assert list(store.stored()) == [f"{0:016x}"]
    assert said[1:] == [f"{broken}: it is not a cell of a sweep; it is left out and measured again"]
    assert not broken.exists()


def long_text(table: Any) -> Any:
    """One text of a MiB in 2,000 rows."""
    token = pa.DictionaryArray.from_arrays(np.zeros(2000, np.int8), ["x" * 2**20])
    return pa.table({"length": np.full(2000, 3), "token": token}).replace_schema_metadata(table.schema.metadata)


WRONG = {
    "a long text in many rows": (long_text, "at most 1 GiB, found 1.95 GiB once unpacked"),
    "an infinite log probability": (
        lambda table: table.append_column("log_probability", pa.array([0.0, float("inf")])),
        "row 1: expected log_probability to be a finite number or missing, found inf",
    ),
}


@pytest.mark.parametrize(("change", "words"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_with_the_rows_of_a_file_is_said_and_costs_its_own_cell_only(
    tmp_path: Path, change: Callable[[Any], Any], words: str
) -> None:
    for seed in (0, 1):
        keep(tmp_path, seed)
    # Without Arrow's schema a dictionary is read as the words that it holds.
    broken, said = spoil(tmp_path, 0, change, store_schema=False), []
    assert broken.stat().st_size < 2**22
    pool = pa.default_memory_pool()
    before = pool.max_memory()
    assert results(tmp_path, say=said.append)["seed"].tolist() == [1, 1]
    assert pool.max_memory() - before < 2**26
    (line,) = said
    assert line.startswith(f"{broken}: ")
    assert line.endswith(f"{words}; it is left out")
    assert report(run=tmp_path, out=tmp_path / "r.html").exists()


def test_such_rows_are_not_stored(tmp_path: Path) -> None:
    table = pd.DataFrame({"length": [3, 4], "log_probability": [-1.0, float("-inf")]})
    with pytest.raises(
        ValueError, match="row 1: expected log_probability to be a finite number or missing, found -inf"
    ):
        file_of(wanted(0), table, GIVEN, code="c", checkpoint="w")


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.int64()], ids=["words for numbers", "numbers that no float64 holds exactly"]
)
def test_the_odd_file_is_left_out_even_if_it_is_the_first(tmp_path: Path, kind: Any) -> None:
    for seed in (0, 1, 2):
        keep(tmp_path, seed)
    odd, said = pa.array([2**62 + 1] * 2).cast(kind), []
    broken = spoil(tmp_path, 0, lambda table: table.set_column(table.column_names.index("value"), "value", odd))
    assert results(tmp_path, say=said.append)["seed"].tolist() == [1, 1, 2, 2]
    assert said == [f"{broken}: it is not a cell of a sweep; it is left out"]


def test_a_cell_is_named_as_it_was_asked_whatever_its_only_file_says(tmp_path: Path) -> None:
    keep(tmp_path, 0)
    spoil(tmp_path, 0, lambda table: table.append_column("model", pa.array([7, 8])))
    table = results(tmp_path)
    assert table["model"].tolist() == ["made"] * 2
    assert table["seed"].tolist() == [0, 0]


# --- the table


def rows(one: KeyedCell, lengths: tuple[int, ...], value: object = 0.5) -> Any:
    """Two rows a length, in no order of lengths."""
    table = pd.DataFrame(
        {"length": [n for n in reversed(lengths) for _ in range(2)], "value": [value, None] * len(lengths)}
    )
    for index, (name, given) in enumerate(one.cell.columns.items()):
        table.insert(index, name, given)
    return table


def store_rows(store: Store, one: KeyedCell, lengths: tuple[int, ...] | None = None, table: Any = None) -> None:
    """Store rows of a cell as a run would, at some of its lengths."""
    part = KeyedCell(replace(one.cell, lengths=lengths or one.cell.lengths), one.base)
    store.add(
        part,
        file_of(part, rows(one, part.cell.lengths) if table is None else table, GIVEN, code="c", checkpoint="w"),
    )


@pytest.fixture
def store(tmp_path: Path) -> Any:
    made = Store(tmp_path)
    with made.locked():
        yield made


def test_rows_stand_in_the_order_of_cells_and_lengths_whatever_that_of_the_files(store: Store) -> None:
    cells = [three(seed, kind) for seed in range(6) for kind in ("evaluate", "collapse")]
    random.Random(0).shuffle(cells)
    store.ask(cells)
    for one in sorted(cells, key=lambda each: each.base):
        store_rows(store, one, (5,))
        store_rows(store, one, (3, 4))
    found = results(store.directory)
    expected = [(one.cell.measurement, one.cell.seed, n) for one in cells for n in one.cell.lengths for _ in range(2)]
    assert list(zip(found["measurement"], found["seed"], found["length"], strict=True)) == expected
    assert found["value"].isna().sum() == len(expected) / 2


def test_a_length_in_two_files_is_read_once_and_one_not_asked_for_not_at_all(store: Store) -> None:
    store.ask([wanted(0, lengths=(4, 5))])
    store_rows(store, three(0), (3, 4))
    store_rows(store, three(0), (4, 5))
    assert results(store.directory)["length"].tolist() == [4, 4, 5, 5]


def test_columns_that_one_file_lacks_or_has_as_another_number_are_joined(store: Store) -> None:
    cells = [three(seed) for seed in range(3)]
    store.ask(cells)
    store_rows(store, cells[0], table=rows(cells[0], (3, 4, 5), 1.5))
    store_rows(store, cells[1], table=rows(cells[1], (3, 4, 5), 2).astype({"value": "Int64"}))
    store_rows(store, cells[2], table=rows(cells[2], (3, 4, 5)).drop(columns="value"))
    found = results(store.directory)
    assert found.groupby("seed")["value"].max().tolist()[:2] == [1.5, 2.0]
    assert found.query("seed == 2")["value"].isna().all()


def test_what_there_is_of_every_cell(store: Store) -> None:
    done, part, failed, halves, new = (three(seed) for seed in range(5))
    store.ask([done, part, failed, halves, new])
    store_rows(store, done)
    store_rows(store, part, (3,))
    store_rows(store, halves, (3,))
    for one, lengths in ((failed, (3, 4, 5)), (halves, (4,)), (halves, (5,))):
        store.fail(KeyedCell(replace(one.cell, lengths=lengths), one.base), "no")
    found = read(store.directory)
    assert [cell.state for cell in found.cells] == ["measured", "missing", "failed", "failed", "missing"]
    assert [cell.missing for cell in found.cells] == [(), (4, 5), (), (), (3, 4, 5)]
    assert [len(cell.failures) for cell in found.cells] == [0, 0, 1, 2, 0]


def test_a_table_says_where_its_numbers_come_from(
    run: Callable[..., tuple[int, str, str]], tmp_path: Path, store: Store
) -> None:
    cells = [three(0), three(1)]
    store.ask(cells)
    store_rows(store, cells[0])
    told = results(store.directory).attrs["ostools"]
    assert told["cells"] == {"asked": 2, "measured": 1, "failed": 0, "missing": 1}
    assert (told["models"], told["versions"]) == ([GIVEN.model], [{"torch": "1"}])
    assert told["time"] == [GIVEN.time, GIVEN.time]
    assert run("sweep", "results", ".", "--out", "table.parquet")[0] == 0
    assert pd.read_parquet(tmp_path / "table.parquet").attrs["ostools"] == told
    assert run("sweep", "results", ".", "--out", "table.json")[0] == 0
    assert json.loads((tmp_path / "table.json").read_text())["provenance"] == told
    code, shown, _ = run("sweep", "results", ".", "--json")
    assert (code, json.loads(shown)["provenance"]) == (0, told)
