"""Files of results: written whole or not at all; and a result as plain JSON values and back, to the
last bit.

Nothing is pickled and nothing is imported by a name in a file. A value that has no form here (an
object of another class) cannot be stored, and the whole result is then stored as its table alone.
"""

import base64
import json
import math
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
import pandas as pd
import psutil

from ostools.ground import InputError, checked_path

Plain: TypeAlias = dict[str, Any]
Stored: TypeAlias = Mapping[str, Any]
Build: TypeAlias = Callable[[str, Stored], object]
"""Makes a result of the name of its class and its decoded fields."""

TABLES = (".parquet", ".csv", ".json")
FIXED = (".png", ".svg", ".pdf")
"""Pictures of one size."""
PICTURES = (".html", *FIXED)


def encoded_fields(result: Any) -> Plain | None:
    """The class, every field but `frame` and `provenance`, and what JSON would change of the
    frame's columns; None where a field has no plain form.
    """
    names = [field.name for field in fields(result) if field.name not in ("frame", "provenance")]
    try:
        values = {name: _encoded(getattr(result, name)) for name in names}
    except TypeError:
        return None
    return {"class": type(result).__name__, "fields": values, **_column_types(result.frame)}


def decoded_fields(stored: Stored, base: pd.DataFrame, build: Build) -> Plain:
    """The fields of `encoded_fields`, with `frame`, whose other columns stand in `base`."""
    values = {name: _decoded(value, build) for name, value in stored["fields"].items()}
    if list(stored["dtypes"]) != [*base.columns]:
        raise ValueError("columns that are not those of the table")
    columns = {name: base[name].tolist() for name in base}
    return {"frame": _frame(stored, columns, len(base), build), **values}


def _column_types(frame: pd.DataFrame) -> Plain:
    """What the rows of a table do not say: the dtypes, and whole columns with values that JSON
    would change.
    """
    odd = {
        name: column
        for name, column in frame.items()
        if column.dtype == object or (column.dtype.kind == "f" and np.isinf(column).any())
    }
    return {
        "dtypes": {str(name): str(column.dtype) for name, column in frame.items()},
        "columns": {str(name): [_encoded(value) for value in odd[name]] for name in odd},
    }


def _frame(stored: Stored, base: Stored, rows: int, build: Build) -> pd.DataFrame:
    """The table of `_column_types`; the values that it lacks stand in `base`, by column."""
    series_by_name = {}
    for name, dtype in stored["dtypes"].items():
        values = [_decoded(value, build) for value in stored["columns"].get(name, base[name])]
        if len(values) != rows:
            raise ValueError(f"{len(values)} values in column {name!r} of {rows} rows")
        series_by_name[name] = pd.Series(values, dtype=dtype)
    return pd.DataFrame(series_by_name, index=pd.RangeIndex(rows))


def _encoded(value: object) -> object:
    """Return a value as plain JSON: what JSON has itself as it is, of another kind `{kind: ...}`.

    Raises `TypeError` for a value that has no form here.
    """
    value = value.item() if isinstance(value, np.generic) else value
    if value is pd.NA:
        return {"NA": True}
    if isinstance(value, float) and not math.isfinite(value):  # JSON has no NaN and no infinity
        return {"float": str(value)}
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, tuple | list):
        return {type(value).__name__: [_encoded(part) for part in value]}
    if isinstance(value, Mapping):
        return {"map": [[_encoded(name), _encoded(part)] for name, part in value.items()]}
    return _encoded_object(value)


def _encoded_object(value: Any) -> Plain:
    if isinstance(value, pd.DataFrame):
        columns = {str(name): [_encoded(entry) for entry in value[name]] for name in value}
        return {"table": {"rows": len(value), **_column_types(value), "columns": columns}}
    if type(value).__module__ == "torch":
        array = np.ascontiguousarray(value.detach().cpu().numpy())
        data = base64.b64encode(array.tobytes()).decode()
        return {"tensor": {"dtype": str(array.dtype), "shape": list(array.shape), "data": data}}
    if hasattr(value, "provenance") and (stored := encoded_fields(value)) is not None:
        source = {"provenance": value.provenance.as_dict(), "frame": _encoded(value.frame)}
        return {"result": {**stored, **source}}
    raise TypeError(f"no plain form of {type(value).__name__}")


def _decoded(value: object, build: Build) -> object:
    """Return the value of `_encoded`. Raises `KeyError` for a kind that it does not write."""
    if not isinstance(value, dict):
        return value
    ((kind, stored),) = value.items()
    readers: dict[str, Callable[[], object]] = {
        "NA": lambda: pd.NA,
        "float": lambda: float(stored),
        "tuple": lambda: tuple(_decoded(part, build) for part in stored),
        "list": lambda: [_decoded(part, build) for part in stored],
        "map": lambda: {_decoded(name, build): _decoded(part, build) for name, part in stored},
        "table": lambda: _frame(stored, stored["columns"], stored["rows"], build),
        "tensor": lambda: _tensor(stored),
        "result": lambda: _result(stored, build),
    }
    return readers[kind]()


def _result(stored: Stored, build: Build) -> object:
    base = cast(pd.DataFrame, _decoded(stored["frame"], build))
    values = decoded_fields(stored, base, build)
    return build(stored["class"], {**values, "provenance": stored["provenance"]})


def _tensor(stored: Stored) -> object:
    import torch

    array = np.frombuffer(base64.b64decode(stored["data"], validate=True), stored["dtype"])
    return torch.from_numpy(array.reshape(stored["shape"]).copy())


# ---- files


def save_table(
    frame: pd.DataFrame,
    provenance: Stored,
    target: Path,
    result: Stored | None = None,
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
    provenance: Stored,
    part: Path,
    ending: str,
    result: Stored | None,
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


def table_as_json(frame: pd.DataFrame, provenance: Stored) -> Plain:
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
    if os.path.isdir(target):
        raise InputError(f"{option} {target}: expected a file, found a directory")
    if target.suffix.lower() not in endings:
        raise InputError(
            f"{option} {target}: expected a name ending in {' '.join(endings)}, found "
            f"{target.name!r}"
        )
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
    place. What a killed write to this path left beside it is removed.
    """
    try:
        _remove_leftovers(target)
        prefix = f".{target.name[:40]}.{os.getpid()}."
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=prefix, suffix=target.suffix)
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


def _remove_leftovers(target: Path) -> None:
    """Remove temporary files of processes that are gone: their names hold the process's number."""
    form = rf"\.{re.escape(target.name[:40])}\.(\d+)\.\w{{8}}{re.escape(target.suffix)}"
    for path in target.parent.iterdir():
        match = re.fullmatch(form, path.name)
        if match is not None and not psutil.pid_exists(int(match[1])):
            path.unlink(missing_ok=True)
