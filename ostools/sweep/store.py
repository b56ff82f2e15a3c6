"""A directory of one run, and the directory of a sweep: a Parquet file per cell, a record per
failure, and what was asked.

A file appears whole or not at all, and carries the hash of its bytes in its name: what was cut off
or changed on disk is found, said and measured again. One runner at a time. Nothing depends on a
clock. A power cut may take back the renames of its last seconds, as directories are not synced:
those cells are measured again.
"""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from filelock import FileLock, Timeout
from pydantic import TypeAdapter

from ostools.ground.errors import InputError
from ostools.ground.files import TABLE_LIMIT, read_bytes
from ostools.measure.swept import Cell
from ostools.results import write_atomically
from ostools.sweep.cell_file import UNREADABLE, CellFile, file_hash, why_broken
from ostools.sweep.cells import KeyedCell

MANIFEST = "sweep.json"
LOCK = ".lock"
_CELL = re.compile(r"([0-9a-f]{16})\.[0-9a-f]{8}\.([0-9a-f]{16})\.parquet")
_BASE = re.compile(r"[0-9a-f]{16}")
_FAILED = re.compile(r"[0-9a-f]{16}\.[0-9a-f]{8}\.json")
_HALF = re.compile(r"\.([0-9a-f]{16}\.[0-9a-f]{8}|sweep\.json)\..*")
"""What a killed run leaves half written: the temporary names of `write_atomically`."""
_CELL_VALUES = TypeAdapter(Cell)
_FORM = 1
"""The form of the manifest. This code cannot know what a later form means."""


@dataclass(frozen=True)
class Failure:
    """Why a cell, here in words, has no rows at these lengths."""

    base: str
    lengths: tuple[int, ...]
    cell: str
    error: str

    def __str__(self) -> str:
        return f"{self.cell}: {self.error}"


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
        """Make the directory and keep other runners out. Raises `InputError` where that cannot be."""
        self.require_ours()
        lock = FileLock(self.directory / LOCK)
        try:
            # The lock before all else: a run killed before there is one leaves an empty directory,
            # which the next one takes.
            with disk_errors(self.directory, "cannot be written"):
                self.directory.mkdir(parents=True, exist_ok=True)
                lock.acquire(timeout=0)
        except Timeout:
            raise InputError(
                f"{self.directory}: another run is writing there; wait for it, or give another directory"
            ) from None
        try:
            yield
        finally:
            with disk_errors(self.directory, "cannot be unlocked"):
                lock.release()

    def require_ours(self) -> None:
        """Raises `InputError` for a file, and for a directory that holds something else."""
        with disk_errors(self.directory, "cannot be read"):
            if not self.directory.exists():
                return
            if not self.directory.is_dir():
                raise InputError(f"{self.directory}: expected a directory, found a file")
            ours = any((self.directory / name).exists() for name in (self.MARK, LOCK))
            if not ours and any(self.directory.iterdir()):
                raise InputError(
                    f"{self.directory}: expected a new directory or that of {self.OF}, found another that is not empty"
                )


class Store(OwnDirectory):
    """Reads and writes the directory of a sweep."""

    MARK, OF = MANIFEST, "a sweep"

    def __init__(self, directory: Path, say: Callable[[str], None] = lambda text: None) -> None:
        super().__init__(directory, say)
        self.cells, self.failed = directory / "cells", directory / "failed"
        self._mine = False  # only who holds the lock removes anything: another may be writing

    @contextmanager
    def locked(self) -> Iterator[None]:
        with super().locked():
            with disk_errors(self.directory, "cannot be written"):
                for folder in (self.cells, self.failed):
                    folder.mkdir(exist_ok=True)
                for folder in (self.cells, self.failed, self.directory):
                    for leftover in files_in(folder, _HALF):
                        leftover.unlink(missing_ok=True)
            self._mine = True
            try:
                yield
            finally:
                self._mine = False

    def require_ours(self) -> None:
        """As of every directory of ours; and a folder in it is its own, as a run removes files
        there.
        """
        super().require_ours()
        for folder in (self.cells, self.failed):
            if folder.is_symlink():
                raise InputError(
                    f"{folder}: expected a directory of this sweep's own, found a link to another"
                )

    def planned_cells(self) -> list[KeyedCell]:
        """What was asked of this directory so far. Raises `InputError` where it is not a sweep's."""
        path = self.directory / MANIFEST
        try:
            with disk_errors(path, "cannot be read"):
                if not path.is_file():
                    if os.path.lexists(path):
                        raise InputError(f"{path}: expected a file, found something else")
                    return []
                manifest = json.loads(read_bytes(path, TABLE_LIMIT))
            if manifest["form"] != _FORM:
                raise ValueError("of another form")
            return [_keyed_cell(row) for row in manifest["cells"]]
        except InputError:
            raise
        except UNREADABLE as error:
            raise InputError(
                f"{path}: expected what `ostools sweep run` wrote in this version, found something else "
                f"({type(error).__name__}); move it away and run the sweep again: measured cells stay"
            ) from error

    def ask(self, keyed_cells: list[KeyedCell]) -> int:
        """Add cells to what was asked; of a cell that was asked before, lengths join and newer code
        replaces older.

        Gives the number of cells that were measured and are replaced: their files stay, and the
        tables leave them out.
        """
        cell_by_identity, replaced = (
            {keyed_cell.identity: keyed_cell for keyed_cell in self.planned_cells()},
            0,
        )
        files_by_base = self.files()
        for keyed_cell in keyed_cells:
            before = cell_by_identity.get(keyed_cell.identity)
            if before is not None and before.base != keyed_cell.base:
                replaced += before.base in files_by_base
            earlier = (
                before.cell.lengths if before is not None and before.base == keyed_cell.base else ()
            )
            cell_by_identity[keyed_cell.identity] = keyed_cell.at(earlier + keyed_cell.cell.lengths)
        rows = [
            {"base": keyed_cell.base, "cell": asdict(keyed_cell.cell)}
            for keyed_cell in cell_by_identity.values()
        ]
        text = json.dumps({"form": _FORM, "cells": rows}, indent=1)
        write_atomically(
            self.directory / MANIFEST, lambda part: part.write_text(text, encoding="utf-8")
        )
        return replaced

    def add(self, keyed_cell: KeyedCell, content: bytes) -> None:
        """Store a cell as `file_of` made it; the record of an earlier failure goes first, so that
        no cell is ever both.
        """
        with disk_errors(self.failed, "cannot be written"):
            (self.failed / f"{keyed_cell.stem}.json").unlink(missing_ok=True)
        path = self.cells / f"{keyed_cell.stem}.{file_hash(content)}.parquet"
        write_atomically(path, lambda part: part.write_bytes(content))

    def fail(self, keyed_cell: KeyedCell, error: str) -> None:
        """Record why a cell has no rows."""
        record = {
            "base": keyed_cell.base,
            "cell": str(keyed_cell.cell),
            "lengths": list(keyed_cell.cell.lengths),
            "error": error,
        }
        text = json.dumps(record, indent=1)
        write_atomically(
            self.failed / f"{keyed_cell.stem}.json",
            lambda part: part.write_text(text, encoding="utf-8"),
        )

    def failures(self) -> list[Failure]:
        """The records of the cells that failed."""
        failures = []
        for path in files_in(self.failed, _FAILED):
            content = self._read(path)
            if content is None:
                continue
            try:
                record = json.loads(content)
                lengths = tuple(map(int, record["lengths"]))
                failures.append(
                    Failure(str(record["base"]), lengths, str(record["cell"]), str(record["error"]))
                )
            except UNREADABLE:
                self._drop(path, "no record of a failure")
        return failures

    def files(self) -> dict[str, list[Path]]:
        """The files of cells by their base, whole or not."""
        files_by_base: dict[str, list[Path]] = defaultdict(list)
        for path in files_in(self.cells, _CELL):
            files_by_base[path.name.partition(".")[0]].append(path)
        return files_by_base

    def stored(self) -> dict[str, list[frozenset[int]]]:
        """The lengths in each whole file, by its base; a broken one is said and removed."""
        lengths_by_base: dict[str, list[frozenset[int]]] = defaultdict(list)
        for base, paths in self.files().items():
            for path in paths:
                content = self._read(path)
                if content is None:
                    continue
                try:
                    lengths = CellFile.of(path, content).lengths
                except UNREADABLE as error:
                    self._drop(path, why_broken(error))
                else:
                    lengths_by_base[base].append(lengths)
        return lengths_by_base

    def _drop(self, path: Path, reason: str) -> None:
        self.say(f"{path}: {reason}; it is left out{' and measured again' if self._mine else ''}")
        if self._mine:
            with disk_errors(path, "cannot be removed"):
                path.unlink(missing_ok=True)

    def _read(self, path: Path) -> bytes | None:
        """None where it cannot be read today: it may be whole, and is left where it is; or a run
        has thrown it away.
        """
        try:
            return read_bytes(path, TABLE_LIMIT)
        except FileNotFoundError:
            return None
        except (OSError, InputError) as error:
            self.say(
                f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}; it is left out"
            )
            return None


def files_in(folder: Path, form: re.Pattern[str]) -> list[Path]:
    """The files whose names are of a form of ours, in order; whatever else lies there is not ours
    to touch.
    """
    with disk_errors(folder, "cannot be read"):
        if not folder.is_dir():
            return []
        return sorted(
            path for path in folder.iterdir() if form.fullmatch(path.name) and path.is_file()
        )


@contextmanager
def disk_errors(path: Path, what: str) -> Iterator[None]:
    """What the disk refuses, in one line that names the place."""
    try:
        yield
    except Timeout:
        raise
    except OSError as error:
        raise InputError(f"{error.filename or path}: {what}: {error.strerror or error}") from error


def _keyed_cell(row: dict[str, Any]) -> KeyedCell:
    """Return a cell as the manifest holds it. Raises what is in `UNREADABLE` for anything else."""
    if not _BASE.fullmatch(row["base"]):
        raise ValueError("expected a key")
    return KeyedCell(_CELL_VALUES.validate_python(row["cell"]), row["base"])
