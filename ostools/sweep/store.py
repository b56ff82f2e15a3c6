"""A directory of one run, and the directory of a sweep: a Parquet file per cell, a record per
failure, and what was asked.

A file appears whole or not at all, and carries the hash of its bytes in its name: what was cut off
or changed on disk is found, said and measured again. One runner at a time. Nothing depends on a
clock. A power cut may take back the renames of its last seconds, as directories are not synced:
those cells are measured again.
"""

import hashlib
import json
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as parquet
from filelock import FileLock, Timeout
from pydantic import TypeAdapter

from ostools.ground import InputError, in_words, refusal
from ostools.results import Frame, Provenance, write_atomically
from ostools.sweep.cells import KeyedCell

Content = TypeVar("Content")
MANIFEST = "sweep.json"
LOCK = ".lock"
_CELL = re.compile(r"[0-9a-f]{16}\.[0-9a-f]{16}\.parquet")
_FAILED = re.compile(r"[0-9a-f]{16}\.json")
_HALF = re.compile(r"\.([0-9a-f]{16}|sweep\.json)\..*")
"""What a killed run leaves half written: the temporary names of `write_atomically`."""


@dataclass(frozen=True)
class Manifest:
    """What was asked of a directory. This code cannot know what a later form means."""

    form: Literal[3]
    cells: tuple[KeyedCell, ...]


_MANIFEST = TypeAdapter(Manifest)
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


class OwnDirectory:
    """A directory that one runner at a time writes to; `say` is told of every file that cannot be
    used.

    MARK: the file by which it is known. OF: whose it is, in words. A directory that holds something
    else is refused.
    """

    MARK: ClassVar[str]
    OF: ClassVar[str]

    def __init__(self, directory: Path, say: Callable[[str], None] = lambda text: None) -> None:
        self.directory, self.say = directory, say

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make the directory and keep other runners out. Raises `InputError` where that
        cannot be, and for what the disk refuses meanwhile.
        """
        self.require_ours()
        # The lock before all else: a run killed before there is one leaves an empty directory,
        # which the next one takes.
        with disk_errors(self.directory, "cannot be written"):
            self.directory.mkdir(parents=True, exist_ok=True)
            with FileLock(self.directory / LOCK, timeout=0):
                yield

    def require_ours(self) -> None:
        """Raises `InputError` for a file, and for a directory that holds something else."""
        with disk_errors(self.directory, "cannot be read"):
            if not self.directory.exists():
                return
            if not self.directory.is_dir():
                raise InputError(f"{self.directory}: expected a directory, found a file")
            names = {path.name for path in self.directory.iterdir()}
        if names and not names & {self.MARK, LOCK}:
            raise InputError(
                f"{self.directory}: expected a new directory or that of {self.OF}, found another "
                "that is not empty"
            )


class Store(OwnDirectory):
    """Reads and writes the directory of a sweep."""

    MARK, OF = MANIFEST, "a sweep"

    def __init__(self, directory: Path, say: Callable[[str], None] = lambda text: None) -> None:
        super().__init__(directory, say)
        self.cells, self.failed = directory / "cells", directory / "failed"

    @contextmanager
    def locked(self) -> Iterator[None]:
        with super().locked():
            for folder in (self.cells, self.failed, self.directory):
                folder.mkdir(exist_ok=True)
                for leftover in files_in(folder, _HALF):
                    leftover.unlink(missing_ok=True)
            yield

    def planned_cells(self) -> list[KeyedCell]:
        """What was asked of this directory last. Raises `InputError` where it is not a
        sweep's.
        """
        path = self.directory / MANIFEST
        again = "; move it away and run the sweep again: measured cells stay"
        with refusal(f"{path} as `ostools sweep run` writes it in this version", again):
            return list(_MANIFEST.validate_json(path.read_bytes()).cells)

    def ask(self, keyed_cells: Sequence[KeyedCell]) -> int:
        """Write down what is asked of the directory from now on.

        Gives the number of cells that were measured and are not asked for: their files stay, and
        the tables leave them out.
        """
        manifest = _MANIFEST.dump_json(Manifest(3, tuple(keyed_cells)), indent=1)
        write_atomically(self.directory / MANIFEST, lambda part: part.write_bytes(manifest))
        measured = {path.name[:16] for path in files_in(self.cells, _CELL)}
        return len(measured - {cell.key for cell in keyed_cells})

    def add(self, keyed_cell: KeyedCell, content: bytes) -> None:
        """Store a cell as `file_of` made it, in the place of the record of an earlier failure and
        of a file that could not be read, so that no cell is ever both.
        """
        (self.failed / f"{keyed_cell.key}.json").unlink(missing_ok=True)
        for unreadable in self.cells.glob(f"{keyed_cell.key}.*.parquet"):
            unreadable.unlink(missing_ok=True)
        path = self.cells / f"{keyed_cell.key}.{file_hash(content)}.parquet"
        write_atomically(path, lambda part: part.write_bytes(content))

    def fail(self, keyed_cell: KeyedCell, error: str) -> None:
        """Record why a cell has no rows."""
        record = json.dumps({"cell": str(keyed_cell.cell), "error": error}, indent=1)
        path = self.failed / f"{keyed_cell.key}.json"
        write_atomically(path, lambda part: part.write_text(record))

    def failures(self) -> dict[str, str]:
        """Why the cells that failed have no rows, by their keys."""
        return dict(
            self._read(
                self.failed, _FAILED, lambda path: str(json.loads(path.read_bytes())["error"])
            )
        )

    def files(self, keys: Container[str]) -> dict[str, CellFile]:
        """The files of these cells by their keys; one that cannot be used is said and left out."""
        return dict(self._read(self.cells, _CELL, read_file, keys))

    def _read(
        self,
        folder: Path,
        form: re.Pattern[str],
        read: Callable[[Path], Content],
        keys: Container[str] | None = None,
    ) -> Iterator[tuple[str, Content]]:
        for path in files_in(folder, form):
            if keys is None or path.name[:16] in keys:
                try:
                    yield path.name[:16], read(path)
                except UNREADABLE as error:
                    self.say(f"{path}: left out, as it cannot be read: {in_words(error)[:200]}")


def files_in(folder: Path, form: re.Pattern[str]) -> list[Path]:
    """The files whose names are of a form of ours, in order; whatever else lies there is not ours
    to touch.
    """
    with disk_errors(folder, "cannot be read"):
        paths = folder.iterdir() if folder.exists() else ()
        return sorted(path for path in paths if form.fullmatch(path.name))


@contextmanager
def disk_errors(path: Path, what: str) -> Iterator[None]:
    """What the disk refuses, or the lock of another run, in one line that names the place."""
    try:
        yield
    except Timeout:
        raise InputError(
            f"{path}: another run is writing there; wait for it, or give another directory"
        ) from None
    except OSError as error:
        raise InputError(f"{error.filename or path}: {what}: {error.strerror or error}") from error
