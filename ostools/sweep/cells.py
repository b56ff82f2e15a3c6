"""The cells of a sweep and their keys.

A cell's key is a hash of everything that defines its numbers, so the same command again finds what
is there.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import platform
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path

from ostools import mitigations, tasks
from ostools.measure.swept import Cell
from ostools.mitigations import Mitigation
from ostools.mitigations.named import NONE
from ostools.models.files.checkpoint import TEMPLATES, Checkpoint
from ostools.sweep.measurements import MEASUREMENTS
from ostools.sweep.sweep_file import Sweep, form_of
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
    """A cell that was asked for, under the key of what defines its numbers but for the lengths."""

    cell: Cell
    base: str

    @property
    def identity(self) -> str:
        """The cell but for its lengths and its code: what a later version of the same numbers
        replaces.
        """
        return json.dumps([self.cell.columns, self.cell.options])

    @property
    def stem(self) -> str:
        """Beginning of the names of its files."""
        return f"{self.base}.{digest(list(self.cell.lengths))[:8]}"

    def at(self, lengths: Iterable[int]) -> KeyedCell:
        """The cell at other lengths."""
        return replace(self, cell=replace(self.cell, lengths=tuple(sorted(set(lengths)))))

    def missing(self, stored: Iterable[frozenset[int]]) -> KeyedCell | None:
        """The lengths that are in none of `stored`, as a cell of their own; None where there are
        none.
        """
        missing_lengths = set(self.cell.lengths).difference(*stored)
        return self.at(missing_lengths) if missing_lengths else None


def to_load(cell: Cell) -> tuple[str, str]:
    """The model of a cell, and the dtype to load it in."""
    return cell.model, "float32" if MEASUREMENTS[cell.measurement].swept.casts else cell.dtype


def cells_of(sweep: Sweep) -> list[Cell]:
    """Every cell, ordered so that each model is loaded once in a dtype. What is asked twice is one
    cell.
    """
    cells: dict[Cell, None] = {}
    mitigation_labels = [_mitigation_label(spec) for spec in sweep.mitigations]
    for measurement, task in itertools.product(sweep.measurements, sweep.tasks):
        form, options = form_of(task, measurement.name), measurement.as_json
        name = _same_text(form, tasks.label(form), task) if isinstance(form, Task) else task
        # What draws nothing is the same under every seed.
        seeds = sweep.seeds if form.random or measurement.draws == "by seed" else (0,)
        dtypes = measurement.dtypes or sweep.dtypes
        for model, label, dtype, seed in itertools.product(
            sweep.models, mitigation_labels, dtypes, seeds
        ):
            which = model, name, dtype, label, seed, measurement.name
            cells[Cell(*which, options, sweep.lengths)] = None
    # Of the file's order only: each model in a dtype once, and the models as they are listed.
    order = list(dict.fromkeys(map(to_load, cells)))
    return sorted(
        cells, key=lambda cell: (sweep.models.index(cell.model), order.index(to_load(cell)))
    )


def _mitigation_label(spec: str) -> str:
    mitigation = None if spec == NONE else mitigations.mitigation(spec)
    return _same_text(mitigation, mitigations.label(mitigation), spec)


def _same_text(definition: Task | Mitigation | None, label: str, spec: str) -> str:
    """Return the text by which a cell makes its task or mitigation again.

    Its label, so that two spellings are one cell; the text as it was given where the label is only
    the `repr` of an object, which no text makes again.
    """
    return spec if label == repr(definition) else label


def base_key(cell: Cell, checkpoint: str, device: str) -> str:
    """What defines the numbers of a cell: parameters, checkpoint, device, versions; its lengths
    where a row depends on the others (`Swept.depends_on_lengths`).

    The model's name is in it too, so that a row says the name that it was asked by.
    """
    depends = MEASUREMENTS[cell.measurement].swept.depends_on_lengths
    definitions = [form_of(cell.task, cell.measurement), *mitigations.parts(cell.mitigated)]
    return digest(
        {
            **cell.columns,
            "options": cell.options,
            "whole": list(cell.lengths) if depends else None,
            "checkpoint": checkpoint,
            "device": device,
            "code": code_version(),
            "sources": sources(definitions),
        }
    )


def sources(definitions: Sequence[object]) -> list[dict[str, list[str]]]:
    """Hashes of what defines tasks and mitigations beside this package: of each the files that it
    names, and the packages of other distributions that its class comes from: it may call any of
    their files.
    """
    return [
        {
            "named": [f"{name} {_file_hash(path)}" for name, path in _named_files(definition)],
            "package": [_file_hash(path) for path in _package_files(type(definition))],
        }
        for definition in definitions
    ]


def _named_files(definition: object) -> Iterator[tuple[str, Path]]:
    names = (
        [field.name for field in fields(definition)]
        if is_dataclass(definition)
        else [*getattr(definition, "__dict__", {})]
    )
    for name in names:
        value = getattr(definition, name)
        if isinstance(value, str | Path) and os.path.isfile(value):
            yield name, Path(value)


def _package_files(kind: type) -> Iterator[Path]:
    for base in kind.__mro__:
        package = base.__module__.partition(".")[0]
        if package not in {"ostools", *sys.stdlib_module_names}:
            roots = map(Path, getattr(sys.modules[package], "__path__", ()))
            files = [file for root in roots for file in sorted(root.rglob("*")) if file.is_file()]
            files += [Path(str(getattr(sys.modules[base.__module__], "__file__", "")))]
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


@cache
def code_version() -> str:
    """The hash of the versions of this package, of what it computes with, and of Python."""
    versions = {name: version(name) for name in _VERSIONS}
    return digest({**versions, "python": platform.python_version()})
