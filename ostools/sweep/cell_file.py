"""Write and read the file of one cell: its rows and what their numbers come from, as Parquet.

The hash of a file's bytes stands in its name: a file whose bytes are still those is one that
`file_of` made, and is not checked again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
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
"""The columns that say what a row was measured with: hashes of the model's files and of the
versions; "" where a file has none."""
_FINITE = ("log_probability",)
"""Columns of numbers that are finite, or missing: logarithms of what a model holds possible, and
what a user gave."""


def file_of(
    keyed_cell: KeyedCell, table: Frame, provenance: Provenance, *, code: str, checkpoint: str
) -> bytes:
    """Return the rows of a cell as the Parquet file that is stored, with the hashes of the versions
    and of the checkpoint's files.

    Raises `ValueError` for an infinite number where none can be, and what pyarrow raises for
    values that it cannot hold.
    """
    for name in set(_FINITE) & set(table):
        if np.isinf(table[name].to_numpy(dtype=float, na_value=np.nan)).any():
            raise ValueError(f"expected {name} to be finite or missing, found an infinite one")
    source = {**provenance.as_dict(), "code": code, "checkpoint": checkpoint}
    attributes = {"lengths": list(keyed_cell.cell.lengths), "provenance": source}
    # As `DataFrame.to_parquet` writes it. But pandas would copy the attributes once a column, most
    # of a small cell's time.
    bare = table.copy(deep=False)
    bare.attrs = {}
    arrow = pa.Table.from_pandas(bare, preserve_index=False)
    attrs = json.dumps({**table.attrs, "ostools": attributes}, allow_nan=False)
    sink = pa.BufferOutputStream()
    metadata = {**arrow.schema.metadata, b"PANDAS_ATTRS": attrs}
    parquet.write_table(arrow.replace_schema_metadata(metadata), sink)
    return sink.getvalue().to_pybytes()


def file_hash(content: bytes) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of a file's bytes."""
    return hashlib.sha256(content).hexdigest()[:16]


@dataclass(frozen=True)
class CellFile:
    """A file of a cell: the lengths in it, its rows as pyarrow has them, and what its numbers come
    from, as it says."""

    path: Path
    lengths: frozenset[int]
    table: pa.Table
    source: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> CellFile:
        """Read a file. Raises `ValueError` for bytes that were changed since `file_of` made them,
        and what is in `UNREADABLE` for a file that another version of ostools made otherwise."""
        content = path.read_bytes()
        if file_hash(content) != path.name.split(".")[2]:
            raise ValueError("its bytes are not those that were written")
        table = parquet.read_table(pa.BufferReader(content), use_threads=False)
        attributes = json.loads(table.schema.metadata[b"PANDAS_ATTRS"])["ostools"]
        source = {**dict.fromkeys(MADE_BY, ""), **attributes["provenance"]}
        table = table.replace_schema_metadata({b"pandas": table.schema.metadata[b"pandas"]})
        return cls(path, frozenset(attributes["lengths"]), table, source)
