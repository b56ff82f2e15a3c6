"""The cells of a sweep and their keys.

A cell's key is a hash of everything that defines its numbers (versions, settings, model, data), so
the same command again finds what is there.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ostools import mitigations, tasks
from ostools.measure.swept import TEXT_TASK, Cell, Text
from ostools.mitigations import Mitigation
from ostools.mitigations.named import NONE
from ostools.mitigations.registry import LOADED
from ostools.models.files.checkpoint import TEMPLATES, Checkpoint
from ostools.sweep.measurements import MEASUREMENTS, Options
from ostools.sweep.sweep_file import Sweep
from ostools.tasks import Task

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


def cells_of(sweep: Sweep) -> list[Cell]:
    """Every cell, ordered so that each model is loaded once in a dtype. What is asked twice is one
    cell.
    """
    cells: dict[Cell, None] = {}
    mitigation_labels = [(_mitigation_label(spec), False) for spec in sweep.mitigations]
    mitigation_labels += [(spec, True) for spec in sweep.typed]
    for measurement, task in itertools.product(sweep.measurements, (*sweep.tasks, *sweep.texts)):
        name, text, seeds = _prompts_of(task, measurement, sweep.seeds)
        dtypes, options = measurement.dtypes or sweep.dtypes, measurement.as_json
        for model, (label, is_typed), dtype, seed in itertools.product(
            sweep.models, mitigation_labels, dtypes, seeds
        ):
            which = model, name, dtype, label, seed, measurement.name
            cells[Cell(*which, options, sweep.lengths, text, is_typed)] = None
    # Of the file's order only: each model in a dtype once, and the models as they are listed.
    order = list(dict.fromkeys(map(to_load, cells)))
    return sorted(
        cells, key=lambda cell: (sweep.models.index(cell.model), order.index(to_load(cell)))
    )


def _prompts_of(
    task: str | Text, measurement: Options, seeds: tuple[int, ...]
) -> tuple[str, Text | None, tuple[int, ...]]:
    """The task's name, the text, and the seeds. What draws nothing is the same under every seed."""
    if isinstance(task, Text):
        return TEXT_TASK, task, seeds
    form = tasks.task(task)
    name = _same_text(form, tasks.label(form), task) if isinstance(form, Task) else task
    return name, None, seeds if form.random or measurement.draws == "by seed" else (0,)


def _mitigation_label(spec: str) -> str:
    mitigation = None if spec == NONE else mitigations.mitigation(spec)
    return _same_text(mitigation, mitigations.label(mitigation), spec)


def _same_text(definition: Task | Mitigation | None, label: str, spec: str) -> str:
    """Return the text by which a cell makes its task or mitigation again.

    Its label, so that two spellings are one cell; the text as it was given where the label is only
    the `repr` of an object, which no text makes again.
    """
    return spec if label == repr(definition) else label


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
        [f"{name} {_file_hash(path)}" for name, path in _named_files(definition)]
        + [_file_hash(path) for path in _package_files(type(definition))]
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
            yield Path(module)
        elif package not in {"ostools", *sys.stdlib_module_names}:
            home: Any = sys.modules[package]
            for root in map(Path, getattr(home, "__path__", [home.__file__])):
                files = [root, *sorted(root.rglob("*"))]
                yield from (f for f in files if f.is_file() and "__pycache__" not in f.parts)


def _file_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


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
        sha.update(f"{path.relative_to(folder).as_posix()}\0{_file_hash(path)}\n".encode())
    return sha.hexdigest()


_READ = (".safetensors", ".json", ".txt", ".model", ".jinja")


_NUMBERS = 2
"""Raised by each change after which the same cell has other numbers, within one version."""


@cache
def code_version() -> str:
    """The hash of the versions of this package, of what it computes with, and of Python."""
    versions = {name: version(name) for name in _VERSIONS}
    return digest({"numbers": _NUMBERS, **versions, "python": platform.python_version()})
