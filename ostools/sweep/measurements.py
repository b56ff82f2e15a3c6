"""The measurements that a sweep can make: `MEASUREMENTS`, out of the records that name a `Swept`.

What a sweep file may ask of one is read from its function's signature: names, types and defaults.
"""

from __future__ import annotations

import inspect
import json
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model, model_validator

import ostools.measure  # noqa: F401 -- its measurements put themselves into RECORDS
from ostools.ground import TransformerBridge, full_hints
from ostools.measure.measurement import RECORDS, MeasurementRecord
from ostools.measure.swept import Cell, Rows, Swept


def listed(value: object) -> tuple[object, ...]:
    """One value where a list is meant is a list of one."""
    return tuple(value) if isinstance(value, list | tuple) else (value,)


Names: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(listed), Field(min_length=1)]


class Strict(BaseModel):
    """Values of a sweep file: no other keys, and no number for a word."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)  # `seeds: true` is no seed


class Options(Strict):
    """What a sweep may ask of a measurement: its arguments, and dtypes of its own."""

    name: Any
    dtypes: Names | None = None

    @property
    def draws(self) -> Literal["by seed", "by sample"] | None:
        """What it draws by, beside what the task draws by the seed."""
        return MEASUREMENTS[self.name].swept.draws(self)

    @property
    def as_json(self) -> str:
        """The arguments of the measurement alone."""
        return json.dumps(self.model_dump(exclude={"name", "dtypes"}), sort_keys=True)

    @model_validator(mode="after")
    def _go_together(self) -> Options:
        MEASUREMENTS[self.name].swept.check(self)
        return self


@dataclass(frozen=True)
class Measurement:
    """A measurement of a sweep: its function, what a sweep knows of it, and what a file may ask of
    it.
    """

    name: str
    function: Callable[..., object]
    swept: Swept
    options: type[Options]


def _measurement(record: MeasurementRecord, swept: Swept) -> Measurement:
    function, name = record.function, record.name.replace("_", "-")
    parameters, hints = inspect.signature(function).parameters, full_hints(function)
    fields: dict[str, Any] = {"name": (Literal[name], name)}
    for option, constraint in swept.options.items():
        if isinstance(constraint, tuple):
            fields[option] = (_of_a_file(constraint[0]), constraint[1])
            continue
        kind = _of_a_file(hints[option])
        default = parameters[option].default
        fields[option] = (kind if constraint is None else Annotated[kind, constraint], default)
    options = create_model(f"{name} options", __base__=Options, **fields)
    return Measurement(name, function, swept, options)


def _of_a_file(hint: object) -> object:
    """A parameter's type as a sweep file has it: a tuple for whatever may be a list, `float` where
    a whole number may stand.
    """
    if get_origin(hint) is Annotated:
        kind, *constraints = get_args(hint)
        return Annotated[_of_a_file(kind), *constraints]
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    listed_kinds = [
        Annotated[tuple[get_args(kind)[0], ...], BeforeValidator(listed), Field(min_length=1)]
        if get_origin(kind) in (Iterable, Sequence)
        else kind
        for kind in kinds
    ]
    without_int = [kind for kind in listed_kinds if not (kind is int and float in kinds)]
    return Union[tuple(without_int)]  # noqa: UP007 (of a tuple)


MEASUREMENTS: dict[str, Measurement] = {
    measurement.name: measurement
    for record in sorted(
        RECORDS.values(), key=lambda record: (record.function.__module__, record.name)
    )
    if record.sweep is not None
    for measurement in (_measurement(record, record.sweep()),)
}


def measure(model: TransformerBridge, cell: Cell) -> Rows:
    """The rows of a cell, without the columns of the cell itself. Raises what the measurement
    refuses.
    """
    measurement = MEASUREMENTS[cell.measurement]
    return measurement.swept.measured(measurement.function, model, cell)
