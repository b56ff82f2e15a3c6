"""A directory of one run, and the directory of a sweep: a Parquet file per cell, a record per
failure, and what was asked.

A file appears whole or not at all, and carries the hash of its bytes in its name: what was cut off
or changed on disk is found, said and measured again. One runner at a time. Nothing depends on a
clock. A power cut may take back the renames of its last seconds, as directories are not synced:
those cells are measured again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, TypeVar

from filelock import FileLock, Timeout
from pydantic import TypeAdapter

from ostools.ground import InputError, in_words, refusal
from ostools.results import write_atomically
from ostools.sweep.cell_file import UNREADABLE, CellFile, file_hash, read_file
from ostools.sweep.cells import KeyedCell

Content = TypeVar("Content")
MANIFEST = "sweep.json"
LOCK = ".lock"
_CELL = re.compile(r"[0-9a-f]{16}\.[0-9a-f]{16}\.parquet")
_FAILED = re.compile(r"[0-9a-f]{16}\.json")
_HALF = re.compile(r"\.([0-9a-f]{16}|sweep\.json)\..*")
"""What a killed run leaves half written: the temporary names of `write_atomically`."""


@dataclass(frozen=True)
class Failure:
    """Why the cell of that key, here in words, has no rows."""

    key: str
    cell: str
    error: str

    def __str__(self) -> str:
        return f"{self.cell}: {self.error}"


@dataclass(frozen=True)
class Manifest:
    """What was asked of a directory. This code cannot know what a later form means."""

    form: Literal[3]
    cells: tuple[KeyedCell, ...]


_MANIFEST, _FAILURE = TypeAdapter(Manifest), TypeAdapter(Failure)


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
        try:
            # The lock before all else: a run killed before there is one leaves an empty directory,
            # which the next one takes.
            with disk_errors(self.directory, "cannot be written"):
                self.directory.mkdir(parents=True, exist_ok=True)
                with FileLock(self.directory / LOCK, timeout=0):
                    yield
        except Timeout:
            raise InputError(
                f"{self.directory}: another run is writing there; wait for it, or give another "
                "directory"
            ) from None

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
        record = _FAILURE.dump_json(Failure(keyed_cell.key, str(keyed_cell.cell), error), indent=1)
        path = self.failed / f"{keyed_cell.key}.json"
        write_atomically(path, lambda part: part.write_bytes(record))

    def failures(self) -> dict[str, Failure]:
        """The records of the cells that failed, by their keys."""
        return dict(
            self._read(self.failed, _FAILED, lambda path: _FAILURE.validate_json(path.read_bytes()))
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
    """What the disk refuses, in one line that names the place."""
    try:
        yield
    except Timeout:
        raise
    except OSError as error:
        raise InputError(f"{error.filename or path}: {what}: {error.strerror or error}") from error
