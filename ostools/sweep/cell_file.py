"""Write and read the file of one cell: plain columns and what their numbers come from, as Parquet."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

from ostools.results import Frame, Provenance
from ostools.sweep.cells import KeyedCell

UNREADABLE = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    OverflowError,
    RecursionError,
    NotImplementedError,
    pa.ArrowException,
)
"""What reading a file raises that is not what we wrote: pyarrow's own errors are of many kinds."""
PLACE = "__cell__"
"""The column that says, while tables are put together, which cell a row is of."""
MADE_BY = ("checkpoint", "code")
"""The columns that say what a row was measured with: hashes of the model's files and of the code; "" where a file has none."""
_PLAIN = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_null,
    pa.types.is_string,
    pa.types.is_large_string,
)
"""The types that a column of a cell may have: numbers and words, which pandas holds whatever their values."""
_FINITE = ("log_probability", "temperature", "seconds")
"""Columns of numbers that are finite, or missing: logarithms of what a model holds possible, and what a user gave."""


class BadRowsError(ValueError):
    """A file, or rows, that cannot be those of a measurement. The message says what is wrong, and with which of them."""


def file_of(keyed_cell: KeyedCell, table: Frame, provenance: Provenance, *, code: str, checkpoint: str) -> bytes:
    """The rows of a cell as the Parquet file that is stored, with the hashes of the code and of the checkpoint's files.

    Raises what pyarrow raises for values that it cannot hold, and what reading the file would raise.
    """
    source = {**provenance.as_dict(), "code": code, "checkpoint": checkpoint}
    attributes = {**table.attrs, "ostools": {"lengths": list(keyed_cell.cell.lengths), "provenance": source}}
    # As `DataFrame.to_parquet` writes it. But pandas would copy the attributes once a column, most of a small cell's time.
    bare = table.copy(deep=False)
    bare.attrs = {}
    arrow = pa.Table.from_pandas(bare, preserve_index=False)
    arrow = arrow.replace_schema_metadata({**arrow.schema.metadata, b"PANDAS_ATTRS": json.dumps(attributes)})
    sink = pa.BufferOutputStream()
    parquet.write_table(arrow, sink)
    content = sink.getvalue().to_pybytes()
    rows_of(content)
    return content


def why_broken(error: Exception) -> str:
    """What is wrong with a file, by what `CellFile.of` raised."""
    return str(error) if isinstance(error, BadRowsError) else "it is not a cell of a sweep"


@dataclass(frozen=True)
class CellFile:
    """A file of a cell: the lengths in it, its rows as pyarrow has them, and what its numbers come from, as it says."""

    path: Path
    lengths: frozenset[int]
    table: Any
    source: Mapping[str, Any]

    @classmethod
    def of(cls, path: Path, content: bytes) -> CellFile:
        """Raises what is in `UNREADABLE` for bytes that `file_of` did not make, or that were changed since."""
        if file_hash(content) != path.name.split(".")[2]:
            raise BadRowsError("its bytes are not those that were written")
        table, attributes = rows_of(content)
        lengths = frozenset(map(int, attributes["lengths"]))
        return cls(path, lengths, table, _checked_source(attributes["provenance"]))


def _checked_source(stored_source: Any) -> dict[str, Any]:
    """What a file says its numbers come from, as `Provenance` has it. Raises TypeError or KeyError for anything else."""
    kinds = {
        "model": dict,
        "versions": dict,
        "parameters": dict,
        "edits": list,
        "time": str,
        **dict.fromkeys(MADE_BY, str),
    }
    source = {**dict.fromkeys(MADE_BY, ""), **stored_source}
    for name, kind in kinds.items():
        if not isinstance(source[name], kind):
            raise TypeError(f"{name}: expected a {kind.__name__}, found a {type(source[name]).__name__}")
    json.dumps(source, ensure_ascii=False, allow_nan=False).encode()  # half of a character, or NaN, can be in no report
    return source


def file_hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def rows_of(content: bytes) -> tuple[Any, dict[str, Any]]:
    """The rows of a cell's file, and what was kept beside them.

    Raises `BadRowsError` for an infinite number where none can be, and what is in
    `UNREADABLE` for bytes that are no such table: with text that is no UTF-8, a column twice, of no plain type, of our own, or
    as an index.
    """
    file = parquet.ParquetFile(pa.BufferReader(content))
    schema = file.schema_arrow
    plain = all(any(is_one(field.type) for is_one in _PLAIN) for field in schema)
    if not plain or len({PLACE, *MADE_BY, *schema.names}) < 3 + len(schema):
        raise ValueError("a column twice, of no plain type, or that is ours to add")
    table = file.read(use_threads=False)
    table.validate(full=True)
    table.schema.field("length")
    for name in set(_FINITE) & set(table.column_names):
        for row, value in enumerate(table.column(name).to_pylist()):
            if isinstance(value, float) and math.isinf(value):
                raise BadRowsError(f"row {row}: expected {name} to be a finite number or missing, found {value}")
    if json.loads(table.schema.metadata[b"pandas"])["index_columns"]:
        raise ValueError("a column that pandas would read as the index")
    metadata = table.schema.metadata
    return table.replace_schema_metadata({b"pandas": metadata[b"pandas"]}), json.loads(metadata[b"PANDAS_ATTRS"])[
        "ostools"
    ]
