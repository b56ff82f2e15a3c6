"""A result as tables and back: every table of it, of the results within it, and where they come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from typing import Any

import pandas as pd

from ostools import experiments, measure
from ostools.ground.errors import InputError
from ostools.measure.collapse.readings import Reading
from ostools.results import Frame, Provenance, Result

KINDS: dict[str, type[Result]] = {
    "Result": Result,
    **{
        name: kind
        for room in (measure, experiments)
        for name, kind in vars(room).items()
        if isinstance(kind, type) and issubclass(kind, Result)
    },
}
"""The results that can be stored, by name; no other class is made from a file."""


def taken_apart(result: Result, name: str, keep: Callable[[str, Frame], str]) -> dict[str, Any]:
    """What makes the result again, as plain values: `keep` stores a table under a name and says by what it is found."""
    kind = type(result).__name__
    if KINDS.get(kind) is not type(result):
        raise InputError(f"expected a result of ostools.measure or ostools.experiments, found {kind}")
    parts = {one.name: _part(getattr(result, one.name), f"{name}.{one.name}", keep) for one in fields(result)}
    return {"kind": kind, "fields": parts}


def _part(value: Any, name: str, keep: Callable[[str, Frame], str]) -> dict[str, Any]:
    if isinstance(value, pd.DataFrame):
        return {"table": keep(name, value)}
    if isinstance(value, Provenance):
        return {"provenance": value.as_dict()}
    if isinstance(value, Result):
        return {"result": taken_apart(value, name, keep)}
    if isinstance(value, Mapping) and all(isinstance(one, Result) for one in value.values()):
        return {"results": {key: taken_apart(one, f"{name}.{key}", keep) for key, one in value.items()}}
    if value is None or isinstance(value, Reading):
        return {"reading": None if value is None else asdict(value)}
    raise InputError(f"{name}: expected a table, a result, a reading or a provenance, found {type(value).__name__}")


def put_together(told: Mapping[str, Any], read: Callable[[str], Frame]) -> Result:
    """The result that was taken apart; `read` gives a stored table. Raises what reading raises, KeyError for another form."""
    kind = KINDS[told["kind"]]
    return kind(**{name: _value(part, read) for name, part in told["fields"].items()})


def _value(part: Mapping[str, Any], read: Callable[[str], Frame]) -> Any:
    ((what, told),) = part.items()
    if what == "table":
        return read(told)
    if what == "provenance":
        ids = told["token_ids"]
        return Provenance(**{**told, "token_ids": None if ids is None else tuple(ids), "edits": tuple(told["edits"])})
    if what == "reading":
        return None if told is None else Reading(**told)
    if what == "result":
        return put_together(told, read)
    if what == "results":
        return {key: put_together(one, read) for key, one in told.items()}
    raise KeyError(what)
