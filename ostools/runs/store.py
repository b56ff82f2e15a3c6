"""The directory of a sweep: a Parquet file per cell, a record per failure, and what was asked.

A file appears whole or not at all, and carries the hash of its bytes in its name: what was cut off or changed on disk is
found, said and measured again. One runner at a time.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as parquet
from filelock import FileLock, Timeout

from ostools.errors import InputError
from ostools.reporting.frames import Frame
from ostools.results import Provenance, write_atomically
from ostools.runs.cells import Cell, lengths_key

MANIFEST = "sweep.json"


@dataclass(frozen=True)
class Wanted:
    """A cell that was asked for, under the key of what defines its numbers but for the lengths."""

    cell: Cell
    base: str

    @property
    def identity(self) -> str:
        """The cell but for its lengths and its code: what a later version of the same numbers replaces."""
        return json.dumps([self.cell.columns, self.cell.options])


@dataclass(frozen=True)
class Stored:
    """A file of the directory, and the lengths in it."""

    path: Path
    lengths: frozenset[int]


class Store:
    """Reads and writes one directory; `say` is told of every file that had to be thrown away."""

    def __init__(self, directory: Path, say: Callable[[str], None] = lambda text: None) -> None:
        self.directory, self.say = directory, say
        self.cells, self.failed = directory / "cells", directory / "failed"
        self._mine = False  # only who holds the lock removes anything: another may be writing

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make the directory and keep other runners out. Raises `InputError` where that cannot be."""
        try:
            for folder in (self.cells, self.failed):
                folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.directory / ".lock")
            lock.acquire(timeout=0)
        except Timeout:
            raise InputError(
                f"{self.directory}: another run is writing there; wait for it, or give another --out"
            ) from None
        except OSError as error:
            raise InputError(f"{self.directory}: cannot be written: {error.strerror or error}") from error
        try:
            for left in (*self.cells.glob(".*"), *self.failed.glob(".*"), *self.directory.glob(f".{MANIFEST}.*")):
                left.unlink(missing_ok=True)  # what a killed run was writing
            self._mine = True
            yield
        finally:
            self._mine = False
            lock.release()

    def asked(self) -> list[Wanted]:
        """What was asked of this directory so far. Raises `InputError` where it is not a sweep's."""
        path = self.directory / MANIFEST
        try:
            rows = json.loads(path.read_text(encoding="utf-8"))["cells"]
            return [
                Wanted(Cell(**{**row["cell"], "lengths": tuple(row["cell"]["lengths"])}), row["base"]) for row in rows
            ]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{path}: expected what `ostools run` wrote, found something else ({type(error).__name__})"
            ) from error

    def ask(self, wanted: list[Wanted]) -> None:
        """Add cells to what was asked; of a cell that was asked before, lengths join and newer code replaces older."""
        known = {one.identity: one for one in self.asked()}
        for one in wanted:
            before = known.get(one.identity)
            lengths = (
                one.cell.lengths
                if before is None or before.base != one.base
                else before.cell.lengths + one.cell.lengths
            )
            known[one.identity] = Wanted(_with_lengths(one.cell, lengths), one.base)
        rows = [
            {"base": one.base, "cell": {**one.cell.columns, "options": one.cell.options, "lengths": one.cell.lengths}}
            for one in known.values()
        ]
        text = json.dumps({"cells": rows}, indent=1)
        write_atomically(self.directory / MANIFEST, lambda part: part.write_text(text, encoding="utf-8"))

    def add(self, one: Wanted, table: Frame, provenance: Provenance) -> None:
        """Store a cell's rows; its record of an earlier failure goes."""
        lengths = list(one.cell.lengths)
        kept = table.copy()
        kept.attrs["ostools"] = {"lengths": lengths, "provenance": provenance.as_dict()}
        stem, content = f"{one.base}.{lengths_key(lengths)}", kept.to_parquet(index=False)
        write_atomically(self.cells / f"{stem}.{_hash(content)}.parquet", lambda part: part.write_bytes(content))
        (self.failed / f"{stem}.json").unlink(missing_ok=True)

    def fail(self, one: Wanted, error: str) -> None:
        """Record why a cell has no rows."""
        record = {"base": one.base, "cell": str(one.cell), "lengths": list(one.cell.lengths), "error": error}
        path = self.failed / f"{one.base}.{lengths_key(one.cell.lengths)}.json"
        write_atomically(path, lambda part: part.write_text(json.dumps(record, indent=1), encoding="utf-8"))

    def failures(self) -> list[dict[str, Any]]:
        """The records of the cells that failed: base, cell in words, lengths, error."""
        found = []
        for path in sorted(self.failed.glob("[!.]*.json")):
            try:
                record = json.loads(path.read_text(encoding="utf-8"))
                found.append(
                    {
                        "base": record["base"],
                        "cell": record["cell"],
                        "lengths": record["lengths"],
                        "error": record["error"],
                    }
                )
            except (OSError, ValueError, KeyError, TypeError):
                self._drop(path, "no record of a failure")
        return found

    def stored(self) -> dict[str, list[Stored]]:
        """The whole files of the directory by their base; a broken one is said and removed."""
        found: dict[str, list[Stored]] = defaultdict(list)
        for path in sorted(self.cells.glob("[!.]*.parquet")):  # with a dot: being written
            base, _, rest = path.name.partition(".")
            if rest.split(".")[1:2] != [_hash(path.read_bytes())]:
                self._drop(path, "its bytes are not those that were written")
                continue
            try:
                kept = json.loads(parquet.read_metadata(path).metadata[b"PANDAS_ATTRS"])["ostools"]
                found[base].append(Stored(path, frozenset(map(int, kept["lengths"]))))
            except (OSError, ValueError, KeyError, TypeError):
                self._drop(path, "it is no cell of a sweep")
        return found

    def _drop(self, path: Path, reason: str) -> None:
        self.say(f"{path}: {reason}; it is left out{' and measured again' if self._mine else ''}")
        if self._mine:
            path.unlink(missing_ok=True)


def missing(one: Wanted, stored: list[Stored], failures: list[dict[str, Any]]) -> Wanted | None:
    """The lengths of a cell that are neither stored nor known to fail, as a cell of their own; None where there are none."""
    have = {length for file in stored for length in file.lengths}
    have |= {length for record in failures if record["base"] == one.base for length in record["lengths"]}
    left = tuple(length for length in one.cell.lengths if length not in have)
    return Wanted(_with_lengths(one.cell, left), one.base) if left else None


def read(files: list[Stored]) -> list[pd.DataFrame]:
    return [pd.read_parquet(file.path) for file in files]


def _with_lengths(cell: Cell, lengths: tuple[int, ...]) -> Cell:
    return Cell(**{**cell.columns, "options": cell.options, "lengths": tuple(sorted(set(lengths)))})


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
