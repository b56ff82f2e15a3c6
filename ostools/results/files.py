"""Files of results: written whole or not at all; and a result as plain JSON values and back, to the
last bit.

Its tables are stored with their dtypes, and so is whatever else its fields hold. Nothing is pickled
and nothing is imported by a name in a file. A value that has no form here (an object of another
class) cannot be stored, and the whole result is then stored as its table alone.
"""

from __future__ import annotations

import base64
import json
import math
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import singledispatch
from pathlib import Path
from types import NoneType
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from ostools.ground.errors import InputError
from ostools.ground.files import checked_path

Plain: TypeAlias = dict[str, Any]
Build: TypeAlias = Callable[[str, Mapping[str, Any]], Any]
"""Makes a result of the name of its class and its decoded fields."""

TABLES = (".parquet", ".csv", ".json")
FIXED = (".png", ".svg", ".pdf")
"""Pictures of one size."""
PICTURES = (".html", *FIXED)

_DTYPES = ("float64", "float32", "int64", "int32", "Int64", "bool", "boolean", "str", "object")
_TENSORS = ("float64", "float32", "int64", "bool")


def encoded_fields(result: Any) -> Plain | None:
    """The class and every field but `frame` and `provenance`; None where a field has no plain form."""
    names = [field.name for field in fields(result) if field.name not in ("frame", "provenance")]
    try:
        values = {name: _encoded(getattr(result, name)) for name in names}
    except TypeError:
        return None
    return {"class": type(result).__name__, "fields": values, **_column_types(result.frame)}


def decoded_fields(stored: Mapping[str, Any], base: pd.DataFrame, build: Build) -> dict[str, Any]:
    """The fields of `encoded_fields`, with `frame`, whose other columns stand in `base`."""
    values = {name: _decoded(value, build) for name, value in stored["fields"].items()}
    if list(stored["dtypes"]) != [*base.columns]:
        raise ValueError("columns that are not those of the table")
    columns = {
        name: base[name].tolist() for name in stored["dtypes"] if name not in stored["columns"]
    }
    return {
        "frame": _frame(stored["dtypes"], {**columns, **stored["columns"]}, len(base)),
        **values,
    }


def _column_types(frame: pd.DataFrame) -> Plain:
    """What the rows of a table do not say: the dtypes, and whole columns with values that JSON or
    Parquet would change.
    """
    odd_columns = {
        str(name): [_encoded(value) for value in column]
        for name, column in frame.items()
        if _is_odd(column)
    }
    return {
        "dtypes": {str(name): str(column.dtype) for name, column in frame.items()},
        "columns": odd_columns,
    }


def _is_odd(column: pd.Series) -> bool:
    return column.dtype == object or (
        column.dtype.kind == "f" and bool(np.isinf(column.to_numpy()).any())
    )


def _frame(dtypes: Mapping[str, str], columns: Mapping[str, list[Any]], rows: int) -> pd.DataFrame:
    if not dtypes and rows:
        raise ValueError(f"{rows} rows of no column")
    series_by_name = {}
    for name, dtype in dtypes.items():
        if dtype not in _DTYPES:
            raise ValueError(f"a column of {dtype!r}")
        values = [_decoded(value, _no_result) for value in columns[name]]
        if len(values) != rows:
            raise ValueError(f"{len(values)} values in column {name!r} of {rows} rows")
        if dtype.startswith("float"):
            values = [math.nan if value is None or value is pd.NA else value for value in values]
        elif dtype in ("Int64", "boolean"):
            values = [
                pd.NA if value is None or value is pd.NA or value != value else value
                for value in values
            ]
        series_by_name[name] = pd.Series(values, dtype=dtype, index=range(rows))
    return pd.DataFrame(series_by_name, index=pd.RangeIndex(rows))


@singledispatch
def _encoded(value: Any) -> Any:
    """Return a value as plain JSON: what JSON has itself as it is, of another kind `{kind: ...}`.

    Raises `TypeError` for a value that has no form here.
    """
    if hasattr(value, "frame") and hasattr(value, "provenance"):
        stored = encoded_fields(value)
        if stored is None:
            raise TypeError(f"no plain form of a field of {type(value).__name__}")
        source = {"provenance": value.provenance.as_dict(), "frame": _encoded(value.frame)}
        return {"result": {**stored, **source}}
    if type(value).__module__ == "torch" and str(value.dtype).removeprefix("torch.") in _TENSORS:
        array = np.ascontiguousarray(value.detach().cpu().numpy())
        data = base64.b64encode(array.tobytes()).decode()
        return {"tensor": {"dtype": str(array.dtype), "shape": list(array.shape), "data": data}}
    raise TypeError(f"no plain form of {type(value).__name__}")


@_encoded.register(str | bool | int | NoneType)
def _(value: Any) -> Any:
    return value


@_encoded.register
def _(value: float) -> Any:
    return value if math.isfinite(value) else {"float": str(value)}


@_encoded.register
def _(value: np.generic) -> Any:  # np.float64 too, which is a float
    return _encoded(value.item())


@_encoded.register(type(pd.NA))
def _(value: Any) -> Plain:
    return {"NA": True}


@_encoded.register(tuple | list)
def _(value: tuple[Any, ...] | list[Any]) -> Plain:
    kind = "tuple" if isinstance(value, tuple) else "list"
    return {kind: [_encoded(part) for part in value]}


@_encoded.register
def _(value: Mapping) -> Plain:
    return {"map": [[_encoded(name), _encoded(part)] for name, part in value.items()]}


@_encoded.register
def _(value: pd.DataFrame) -> Plain:
    columns = {str(name): [_encoded(entry) for entry in value[name].tolist()] for name in value}
    return {"table": {"rows": len(value), **_column_types(value), "columns": columns}}


def _decoded(value: Any, build: Build) -> Any:
    """Return the value of `_encoded`. Raises `ValueError` for a kind that it does not write."""
    if not isinstance(value, dict):
        return value
    ((kind, stored),) = value.items()
    match kind:
        case "NA":
            return pd.NA
        case "float":
            return float(stored)
        case "tuple":
            return tuple(_decoded(part, build) for part in stored)
        case "list":
            return [_decoded(part, build) for part in stored]
        case "map":
            return {_decoded(name, build): _decoded(part, build) for name, part in stored}
        case "table":
            return _frame(stored["dtypes"], stored["columns"], stored["rows"])
        case "result":
            base = _decoded(stored["frame"], build)
            values = decoded_fields(stored, base, build) | {"provenance": stored["provenance"]}
            return build(stored["class"], values)
        case "tensor":
            return _tensor(stored)
    raise ValueError(f"a value of the unknown kind {kind!r}")


def _tensor(stored: Mapping[str, Any]) -> Any:
    import torch

    if stored["dtype"] not in _TENSORS:
        raise ValueError(f"a tensor of {stored['dtype']!r}")
    array = np.frombuffer(base64.b64decode(stored["data"], validate=True), stored["dtype"])
    return torch.from_numpy(array.reshape(stored["shape"]).copy())


def _no_result(name: str, values: Mapping[str, Any]) -> Any:
    raise ValueError(f"a {name} inside a table")


# ---- files


def save_table(
    frame: pd.DataFrame,
    provenance: Mapping[str, Any],
    target: Path,
    result: Mapping[str, Any] | None = None,
) -> Path:
    """Write a table as .parquet, .csv or .json, by the ending of `target`, with where its numbers
    come from.

    Parquet has the provenance in its metadata (`frame.attrs["ostools"]`), JSON beside the rows; CSV
    has no place for it. So has what else `load_result` needs, if it is given
    (`frame.attrs["ostools_result"]`, "result").
    """
    return write_atomically(
        target, lambda part: _write_table(frame, provenance, part, target.suffix.lower(), result)
    )


def _write_table(
    frame: pd.DataFrame,
    provenance: Mapping[str, Any],
    part: Path,
    ending: str,
    result: Mapping[str, Any] | None,
) -> None:
    if ending == ".parquet":
        table = frame.copy()
        table.attrs["ostools"] = provenance
        if result is not None:
            table.attrs["ostools_result"] = result
        table.to_parquet(part, index=False)
    elif ending == ".csv":
        frame.to_csv(part, index=False)
    else:
        document = table_as_json(frame, provenance) | ({} if result is None else {"result": result})
        part.write_text(json.dumps(document, indent=1, allow_nan=False))


def table_as_json(frame: pd.DataFrame, provenance: Mapping[str, Any]) -> dict[str, Any]:
    """`provenance` and `rows` as plain values, to the last bit; what is missing or not finite is
    None.
    """
    # Not by DataFrame.to_json, which rounds to decimals and not to digits: 1.2e-14 would be 1e-14.
    rows = frame.to_dict("records")
    for row in rows:
        for name, value in row.items():
            if value is pd.NA or (isinstance(value, float) and not math.isfinite(value)):
                row[name] = None
    return {"provenance": provenance, "rows": rows}


def checked_output(
    path: str | Path, endings: tuple[str, ...] = TABLES + PICTURES, *, option: str = "path"
) -> Path:
    """The path, if a result can be written there; called before anything is computed. Raises
    `InputError` otherwise, which names what it was asked by: an argument, or an option."""
    target = checked_path(path, option)
    if target.suffix.lower() not in endings:
        raise InputError(
            f"{option} {target}: expected a name ending in {' '.join(endings)}, found {target.suffix!r}"
        )
    if os.path.isdir(target):
        raise InputError(f"{option} {target}: expected a file, found a directory")
    if not os.path.isdir(target.parent):
        raise InputError(
            f"{option} {target}: the directory {target.parent} does not exist; make it first"
        )
    try:
        if target.exists() and not os.access(target, os.W_OK):
            raise InputError(f"{option} {target}: no permission to write there")
        # Permissions do not say it of a read-only disk, of /proc or to root; a file that no listing
        # shows does.
        tempfile.TemporaryFile(dir=target.parent).close()
    except OSError as error:
        raise InputError(
            f"{option} {target}: cannot be written: {error.strerror or error}"
        ) from error
    return target


def write_atomically(target: Path, write: Callable[[Path], object]) -> Path:
    """Let `write` fill a temporary file beside `target`, flush it to disk, and rename it into
    place.
    """
    try:
        handle, name = tempfile.mkstemp(
            dir=target.parent, prefix=f".{target.name[:40]}.", suffix=target.suffix
        )
        os.close(handle)
        part = Path(name)
        try:
            write(part)
            with part.open("rb") as file:
                os.fsync(file.fileno())
            os.umask(umask := os.umask(0))
            part.chmod(0o666 & ~umask)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"cannot write {target}: {error.strerror or error}") from error
    return target
