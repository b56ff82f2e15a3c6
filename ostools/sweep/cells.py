"""The cells of a sweep: what is measured in one (`MEASUREMENTS`, out of the records that name a
`Swept`), and its key.

What a sweep file may ask of a measurement is read from its function's signature: names, types and
defaults.

A cell's key is a hash of everything that defines its numbers (versions, settings, model, data), so
the same command again finds what is there.
"""

import hashlib
import inspect
import json
import os
import platform
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model, model_validator

import ostools.measure  # noqa: F401 -- its measurements put themselves into RECORDS
from ostools import mitigations, tasks
from ostools.ground import TransformerBridge, full_hints
from ostools.measure.measurement import RECORDS, MeasurementRecord
from ostools.measure.swept import Cell, Rows, Swept
from ostools.mitigations.registry import LOADED, own_files
from ostools.models.files.checkpoint import TEMPLATES, Checkpoint
from ostools.models.files.gguf_cache import file_hash


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
    def _go_together(self) -> "Options":
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

    @property
    def takes_lengths(self) -> bool:
        """Whether one result has rows of several lengths."""
        return "lengths" in inspect.signature(self.function).parameters


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


# --- keys

_VERSIONS = (
    "oversquashing-tools",
    "torch",
    "transformers",
    "transformer-lens",
    "tokenizers",
    "numpy",
    "scipy",
    "scikit-learn",
    "statsmodels",
)


@dataclass(frozen=True)
class KeyedCell:
    """A cell that was asked for, under the key of what defines its numbers."""

    cell: Cell
    key: str


def to_load(cell: Cell) -> tuple[str, str]:
    """The model of a cell, and the dtype to load it in."""
    return cell.model, "float32" if MEASUREMENTS[cell.measurement].swept.casts else cell.dtype


def keyed(cell: Cell, checkpoint: str, device: str) -> KeyedCell:
    """The cell under the key of what defines its numbers: settings, text, checkpoint, device,
    versions, lengths.

    The model's name is in it too, so that a row says the name that it was asked by.
    """
    text = cell.text
    of_task = [tasks.task(cell.task)] if text is None else []
    base = {
        **cell.columns,
        "options": cell.options,
        "text": None if text is None else [text.id, text.number, digest(text.text)],
        "checkpoint": checkpoint,
        "device": device,
        "code": code_version(),
        "sources": sources([*of_task, *mitigations.parts(cell.mitigated)]),
    }
    return KeyedCell(cell, digest([digest(base), list(cell.lengths)]))


def sources(definitions: Sequence[object]) -> list[list[str]]:
    """Hashes of what defines each task and mitigation beside this package: of the files that it
    names, and of those of the package of another distribution that its class comes from, as it may
    call any of them.
    """
    return [
        [f"{name} {file_hash(path)}" for name, path in _named_files(definition)]
        + [file_hash(path) for path in _package_files(type(definition))]
        for definition in definitions
    ]


def _named_files(definition: object) -> Iterator[tuple[str, Path]]:
    attributes = getattr(definition, "__dict__", {})
    for name in getattr(definition, "__dataclass_fields__", attributes):
        value = getattr(definition, name)
        if isinstance(value, str | Path) and os.path.isfile(value):
            yield name, Path(value)


def _package_files(kind: type) -> Iterator[Path]:
    for module in dict.fromkeys(base.__module__ for base in kind.__mro__):
        package = module.partition(".")[0]
        if module in LOADED:  # a file of the user's own
            yield from map(Path, own_files(module))
        elif package not in {"ostools", *sys.stdlib_module_names}:
            home: Any = sys.modules[package]
            for root in map(Path, getattr(home, "__path__", [home.__file__])):
                files = [root, *sorted(root.rglob("*"))]
                yield from (f for f in files if f.is_file() and "__pycache__" not in f.parts)


def digest(value: object) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of a JSON value."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def checkpoint_hash(source: Checkpoint) -> str:
    """The SHA-256 of every file that loading reads: weights, configuration, tokenizer; of a GGUF
    file that file's own.

    Cost: reading them once."""
    if source.sha256 is not None:
        return source.sha256
    sha = hashlib.sha256()
    folder = source.directory
    paths = [*folder.iterdir(), *(folder / TEMPLATES).glob("*.jinja")]
    for path in sorted(path for path in paths if path.suffix in _READ and path.is_file()):
        sha.update(f"{path.relative_to(folder).as_posix()}\0{file_hash(path)}\n".encode())
    return sha.hexdigest()


_READ = (".safetensors", ".json", ".txt", ".model", ".jinja")


_NUMBERS = 4
"""Raised by each change after which the same cell has other numbers, within one version."""


@cache
def code_version() -> str:
    """The hash of the versions of this package, of what it computes with, and of Python."""
    versions = {name: version(name) for name in _VERSIONS}
    return digest({"numbers": _NUMBERS, **versions, "python": platform.python_version()})
