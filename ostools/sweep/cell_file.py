"""Write and read the file of one cell: its rows and what their numbers come from, as Parquet.

The hash of a file's bytes stands in its name: bytes that were changed since are no numbers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as parquet

from ostools.results import Frame, Provenance

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
MADE_BY = ("checkpoint", "code")
"""The columns that say what a row was measured with: hashes of the model's files and of the
versions."""
_SOURCE = b"ostools"
"""The key of Parquet's metadata under which the provenance stands, as JSON."""


def file_of(table: Frame, provenance: Provenance, *, code: str, checkpoint: str) -> bytes:
    """Return the rows of a cell as the Parquet file that is stored, with the hashes of the versions
    and of the checkpoint's files.

    Raises `ValueError` for an infinite number where none can be, and what pyarrow raises for
    values that it cannot hold.
    """
    # Logarithms of what a model holds possible, and what a user gave, are finite.
    numbers = table.get("log_probability", pd.Series(dtype=float))
    if np.isinf(numbers.to_numpy(dtype=float, na_value=np.nan)).any():
        raise ValueError("expected log_probability to be finite or missing, found an infinite one")
    made_by = {"checkpoint": checkpoint, "code": code}
    rows = table.assign(**made_by)
    rows.attrs = {}  # pandas would copy them once a column, most of a small cell's time
    arrow = pa.Table.from_pandas(rows, preserve_index=False)
    source = json.dumps({**provenance.as_dict(), **made_by}, allow_nan=False)
    sink = pa.BufferOutputStream()
    metadata = {**arrow.schema.metadata, _SOURCE: source}
    parquet.write_table(arrow.replace_schema_metadata(metadata), sink)
    return sink.getvalue().to_pybytes()


def file_hash(content: bytes) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of a file's bytes."""
    return hashlib.sha256(content).hexdigest()[:16]


class CellFile(NamedTuple):
    """The rows of a cell as pyarrow has them, and what its numbers come from: its provenance, with
    the hashes of `MADE_BY`."""

    table: pa.Table
    source: Mapping[str, Any]


def read_file(path: Path) -> CellFile:
    """Read the file of a cell. Raises `ValueError` for bytes that were changed since `file_of` made
    them, and what is in `UNREADABLE` for a file that another version of ostools made otherwise."""
    content = path.read_bytes()
    if file_hash(content) != path.name.split(".")[1]:
        raise ValueError("its bytes are not those that were written")
    table = parquet.read_table(pa.BufferReader(content), use_threads=False)
    source = json.loads(table.schema.metadata[_SOURCE])
    return CellFile(
        table.replace_schema_metadata({b"pandas": table.schema.metadata[b"pandas"]}), source
    )
