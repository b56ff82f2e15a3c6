"""The cells of a sweep and their keys.

A cell's key is a hash of everything that defines its numbers, so the same command again finds what
is there.
"""

from __future__ import annotations

import ast
import hashlib
import itertools
import json
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ostools import mitigations, tasks
from ostools.measure.swept import Cell
from ostools.mitigations import Mitigation
from ostools.mitigations.named import NONE
from ostools.models.files.checkpoint import TEMPLATES, Checkpoint
from ostools.sweep.measurements import MEASUREMENTS
from ostools.sweep.sweep_file import Sweep, form_of
from ostools.tasks import CollapseTask, Task

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
_TELLING = ("ostools/cli/", "ostools/explorer/", "ostools/reporting/")
"""Rooms that decide no number."""
_OWN_PACKAGES = {
    "ostools",
    *sys.stdlib_module_names,
    *(name.replace("-", "_") for name in _VERSIONS),
}
"""Packages that the version of the code speaks for."""


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
    form_once, mitigation_once = cache(_form_and_label), cache(_mitigation_label)
    options = {measurement: measurement.as_json for measurement in sweep.measurements}
    for measurement, model, task, spec in itertools.product(
        sweep.measurements, sweep.models, sweep.tasks, sweep.mitigations
    ):
        form, name = form_once(task, measurement.name)
        # What draws nothing is the same under every seed.
        seeds = sweep.seeds if form.random or measurement.draws == "by seed" else (0,)
        for dtype, seed in itertools.product(measurement.dtypes or sweep.dtypes, seeds):
            which = model, name, dtype, mitigation_once(spec)
            cells[Cell(*which, seed, measurement.name, options[measurement], sweep.lengths)] = None
    order = {pair: index for index, pair in enumerate(dict.fromkeys(map(to_load, cells)))}
    models = {name: index for index, name in enumerate(dict.fromkeys(cell.model for cell in cells))}
    return sorted(cells, key=lambda cell: (models[cell.model], order[to_load(cell)]))


def _mitigation_label(spec: str) -> str:
    if spec == NONE:
        return NONE
    mitigation = mitigations.mitigation(spec)
    return _cell_text(mitigation, mitigations.label(mitigation), spec)


def _form_and_label(spec: str, measurement: str) -> tuple[Task | CollapseTask, str]:
    form = form_of(spec, measurement)
    return form, _cell_text(form, tasks.label(form), spec) if isinstance(form, Task) else spec


def _cell_text(definition: Task | Mitigation, label: str, spec: str) -> str:
    """Return the text by which a cell makes its task or mitigation again.

    Its label, so that two spellings are one cell; the text as it was given where the label is only
    the `repr` of an object, which no text makes again.
    """
    return spec if label == repr(definition) else label


def base_key(cell: Cell, checkpoint: str, device: str) -> str:
    """What defines the numbers of a cell: parameters, checkpoint, device, code and versions; its
    lengths where a row depends on the others (`Swept.depends_on_lengths`).

    The model's name is in it too, so that a row says the name that it was asked by.
    """
    definitions: list[Any] = [form_of(cell.task, cell.measurement)]
    if cell.mitigated is not None:
        definitions += mitigations.parts(cell.mitigated)
    return digest(
        {
            **cell.columns,
            "options": cell.options,
            "whole": list(cell.lengths)
            if MEASUREMENTS[cell.measurement].swept.depends_on_lengths
            else None,
            "checkpoint": checkpoint,
            "device": device,
            "code": code_version(),
            **sources(definitions),
        }
    )


def sources(definitions: Sequence[Any]) -> dict[str, Any]:
    """What defines tasks and mitigations beside this package's code: the packages that their
    classes come from, and the files that they name, as hashes."""
    return {
        "plugins": [_plugin_source(type(definition)) for definition in definitions],
        "files": [_files(definition) for definition in definitions],
    }


def _files(definition: object) -> dict[str, str]:
    names = (
        [field.name for field in fields(definition)]
        if is_dataclass(definition)
        else getattr(definition, "__dict__", {})
    )
    values = {name: getattr(definition, name) for name in names}
    paths = {name: Path(value) for name, value in values.items() if isinstance(value, str | Path)}
    return {name: _file_hash(path) for name, path in paths.items() if _is_file(path)}


def _is_file(path: Path) -> bool:
    with suppress(OSError, ValueError):  # a text that no path can be: too long, or with a NUL
        return path.is_file()
    return False


def _file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _plugin_source(kind: type) -> list[str]:
    """The hashes of the packages that a task's or mitigation's class comes from, where they are
    another distribution's: of every file, as a class may call or read any of them."""
    hashes = []
    for name in sorted(
        {base.__module__.partition(".")[0] for base in kind.__mro__} - _OWN_PACKAGES
    ):
        package = sys.modules[name]
        roots = [Path(root) for root in getattr(package, "__path__", ())]
        files = [(str(file.relative_to(root)), file) for root in roots for file in root.rglob("*")]
        if not roots and getattr(package, "__file__", None):
            files = [("", Path(str(package.__file__)))]
        files = [
            (place, file)
            for place, file in sorted(files)
            if "__pycache__" not in file.parts and file.is_file()
        ]
        hashes.append(digest([[place, _file_hash(file)] for place, file in files]))
    return hashes


def digest(value: Any) -> str:
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
    """The hash of what this package does, of the versions of what it computes with, and of Python.

    What it does is the syntax of its modules without docstrings and comments: the version of a
    clone stays as it is while its numbers change.
    """
    versions = {name: version(name) for name in _VERSIONS}
    return digest(
        {"syntax": _syntax_hashes(), "versions": versions, "python": platform.python_version()}
    )


def _syntax_hashes() -> Mapping[str, str]:
    """Of each module that may decide a number: all but those that draw, tell and ask."""
    home = Path(__file__).parents[1]
    # `hooks` and `mitigations` are links in a clone, which rglob does not follow.
    files = [
        file for room in (home, home / "hooks", home / "mitigations") for file in room.rglob("*.py")
    ]
    names = {file.relative_to(home.parent).as_posix(): file for file in sorted(files)}
    return {
        name: syntax_hash(file.read_text("utf-8"))
        for name, file in names.items()
        if not name.startswith(_TELLING)
    }


def syntax_hash(source: str) -> str:
    """Hash of a module's syntax without its docstrings, comments and layout."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if (
            isinstance(body, list)
            and body
            and isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant)
        ):
            del body[0]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()
