"""The directory of a reproduction: for each part a record, and a Parquet file for each result.

Files appear whole or not at all, and a part's record last: what was cut off is measured again. A
record holds the key of what its numbers come from (model, arguments, code, versions): under another
key the part is measured again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ostools.results import Result, load_result, write_atomically
from ostools.sweep.cell_file import UNREADABLE
from ostools.sweep.store import OwnDirectory, disk_errors

MARK = "reproduction.json"


class Parts(OwnDirectory):
    """Reads and writes the directory of a reproduction."""

    MARK, OF = MARK, "`ostools reproduce`"

    @contextmanager
    def locked(self) -> Iterator[None]:
        with super().locked():
            _write_json(self.directory / MARK, {"what": "ostools reproduce"})
            yield

    def keep(self, name: str, key: str, results: Mapping[str, Result], seconds: float) -> None:
        """Store a part: its results, and after them the record by which they are found."""
        # Without the old record first: a run killed here would leave it to vouch for new numbers.
        with disk_errors(self.directory / name, "cannot be written"):
            self._record(name).unlink(missing_ok=True)
            (self.directory / name).mkdir(exist_ok=True)
        for file, result in results.items():
            result.save(self._table(name, file))
        record = {"key": key, "seconds": seconds, "results": list(results)}
        _write_json(self._record(name), record)

    def results(self, name: str, key: str) -> dict[str, Result] | None:
        """The stored results of a part under this key; None where it has to be measured."""
        if not self.has(name):
            return None
        problem = "was measured with another model, other arguments or other code"
        try:
            record = json.loads(self._record(name).read_bytes())
            if record["key"] == key:
                return {file: load_result(self._table(name, file)) for file in record["results"]}
        except UNREADABLE as error:
            problem = f"what is stored cannot be read ({type(error).__name__})"
        self.say(f"{name}: {problem}; it is measured again")
        return None

    def has(self, name: str) -> bool:
        """Whether a part was measured, under any key."""
        return self._record(name).exists()

    def seconds(self, name: str) -> float:
        """Seconds that a stored part took to measure."""
        return float(json.loads(self._record(name).read_bytes())["seconds"])

    def _record(self, name: str) -> Path:
        return self.directory / f"{name}.json"

    def _table(self, name: str, file: str) -> Path:
        return self.directory / name / f"{Path(file).name}.parquet"


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    text = json.dumps(value, indent=1)
    write_atomically(path, lambda part: part.write_text(text, encoding="utf-8"))
