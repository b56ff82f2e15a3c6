"""A result as plain JSON values and back, to the last bit: its tables with their dtypes, and whatever else its fields hold.

Nothing is pickled and nothing is imported by a name in a file. A value that has no form here (an object of another class)
cannot be stored, and the whole result is then stored as its table alone.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

Plain: TypeAlias = dict[str, Any]
Build: TypeAlias = Callable[[str, Mapping[str, Any]], Any]
"""Makes a result of the name of its class and its decoded fields."""

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
    columns = {name: base[name].tolist() for name in stored["dtypes"] if name not in stored["columns"]}
    return {"frame": _frame(stored["dtypes"], {**columns, **stored["columns"]}, len(base)), **values}


def _column_types(frame: pd.DataFrame) -> Plain:
    """What the rows of a table do not say: the dtypes, and whole columns with values that JSON or Parquet would change."""
    odd_columns = {
        str(name): [_encoded(value) for value in column] for name, column in frame.items() if _is_odd(column)
    }
    return {"dtypes": {str(name): str(column.dtype) for name, column in frame.items()}, "columns": odd_columns}


def _is_odd(column: pd.Series) -> bool:
    return column.dtype == object or (column.dtype.kind == "f" and bool(np.isinf(column.to_numpy()).any()))


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
            values = [pd.NA if value is None or value is pd.NA or value != value else value for value in values]
        series_by_name[name] = pd.Series(values, dtype=dtype, index=range(rows))
    return pd.DataFrame(series_by_name, index=pd.RangeIndex(rows))


def _encoded(value: Any) -> Any:
    """Raises `TypeError` for a value of another kind."""
    if value is pd.NA:
        return {"NA": True}
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, np.generic):
        return _encoded(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, pd.DataFrame):
        names = [str(name) for name in value.columns]
        every = {name: [_encoded(entry) for entry in value[name].tolist()] for name in names}
        return {"table": {"rows": len(value), **_column_types(value), "columns": every}}
    if isinstance(value, tuple | list):
        return {type(value).__name__: [_encoded(part) for part in value]}
    if isinstance(value, Mapping):
        return {"map": [[_encoded(name), _encoded(part)] for name, part in value.items()]}
    if hasattr(value, "frame") and hasattr(value, "provenance"):
        inner = encoded_fields(value)
        if inner is None:
            raise TypeError
        return {"result": {**inner, "provenance": value.provenance.as_dict(), "frame": _encoded(value.frame)}}
    if type(value).__module__ == "torch" and str(value.dtype).removeprefix("torch.") in _TENSORS:
        array = np.ascontiguousarray(value.detach().cpu().numpy())
        data = base64.b64encode(array.tobytes()).decode()
        return {"tensor": {"dtype": str(array.dtype), "shape": list(array.shape), "data": data}}
    raise TypeError(f"no plain form of {type(value).__name__}")


def _decoded(value: Any, build: Build) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, stored),) = value.items()
    if kind == "NA":
        return pd.NA
    if kind == "float":
        return float(stored)
    if kind in ("tuple", "list"):
        parts = [_decoded(part, build) for part in stored]
        return tuple(parts) if kind == "tuple" else parts
    if kind == "map":
        return {_decoded(name, build): _decoded(part, build) for name, part in stored}
    if kind == "table":
        return _frame(stored["dtypes"], stored["columns"], stored["rows"])
    if kind == "result":
        base = _decoded(stored["frame"], build)
        return build(stored["class"], {**decoded_fields(stored, base, build), "provenance": stored["provenance"]})
    if kind == "tensor":
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
