"""Follows a run that another process, or another machine, is making, from what its directory holds.

Nothing there is locked, changed or removed. A look costs two listings, and the footer of every file that is new: the bytes are
held against their hash only when they are read, by `results`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet

from ostools.runs.cell_file import UNREADABLE
from ostools.runs.reading import AskedCell, by_base, require_sweep
from ostools.runs.store import LOCK, Store

_LOCKS = Path("/proc/locks")


@dataclass(frozen=True)
class HowFar:
    """How far a run is: cells asked, measured, failed; `failures`, each in words, in the order of the cells.

    running: whether a process that can be seen from here holds the directory's lock; None where that cannot be known.
    """

    cell_count: int
    measured: int
    failed: int
    failures: tuple[str, ...]
    running: bool | None

    @property
    def remaining_count(self) -> int:
        return self.cell_count - self.measured - self.failed

    @property
    def over(self) -> bool:
        """Whether every cell is measured or failed, and nobody is seen to try again."""
        return self.cell_count > 0 and self.remaining_count == 0 and not self.running


class Following:
    """Looks at one directory again and again. Raises `InputError` for one without a sweep."""

    def __init__(self, directory: str | Path) -> None:
        target = Path(directory)
        # A run that has just begun holds its lock, and has asked nothing yet.
        self.store = Store(target)
        if (target / LOCK).is_file():
            self.store.require_ours()
        else:
            require_sweep(target)
        self._lengths: dict[str, frozenset[int]] = {}

    def look(self) -> HowFar:
        """What is there now. A file that appears while we look may be counted by the next look."""
        running = lock_held(self.store.directory / LOCK)  # before the files: what is written after it is seen below
        files, failures = self.store.files(), by_base(self.store.failures())
        cells = []
        for keyed_cell in self.store.planned_cells():
            lengths = [n for path in files.get(keyed_cell.base, ()) for n in self._lengths_of(path)]
            cells.append(AskedCell.of(keyed_cell, lengths, failures.get(keyed_cell.base, ())))
        messages = [str(record) for cell in cells if cell.state == "failed" for record in cell.failures]
        states = [cell.state for cell in cells]
        return HowFar(len(cells), states.count("measured"), states.count("failed"), tuple(messages), running)

    def _lengths_of(self, path: Path) -> frozenset[int]:
        """The lengths in a file, whose name is of its bytes; none of a broken one, which the run will measure again."""
        if path.name not in self._lengths:
            try:
                attributes: Any = json.loads(parquet.read_schema(path).metadata[b"PANDAS_ATTRS"])["ostools"]
                self._lengths[path.name] = frozenset(map(int, attributes["lengths"]))
            except OSError:
                return frozenset()  # of this moment: it may be read the next time
            except UNREADABLE:
                self._lengths[path.name] = frozenset()
        return self._lengths[path.name]


def lock_held(path: Path) -> bool | None:
    """Whether some process of this machine holds the lock, without taking it; None where the system does not say.

    Linux lists its locks in /proc/locks. One of another machine on a shared file system, or of another container, is not among
    them.
    """
    try:
        inode = path.stat().st_ino
        lines = _LOCKS.read_text().splitlines()
    except FileNotFoundError:
        return False if _LOCKS.exists() else None
    except OSError:
        return None
    # By inode alone: some file systems (btrfs, overlays) give files another device number than their locks.
    return any(word.endswith(f":{inode}") for line in lines if "->" not in line for word in line.split())
