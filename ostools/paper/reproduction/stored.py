"""The directory of a reproduction: for each part a record, and a Parquet file for each result.

Files appear whole or not at all, and a part's record last: what was cut off, or changed on disk (by
the hash of its bytes), is measured again. A record holds the key of what its numbers come from
(model, arguments, code, versions): under another key the part is measured again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ostools.ground.errors import InputError
from ostools.ground.files import JSON_LIMIT, TABLE_LIMIT, read_bytes
from ostools.results import Result, load_result, write_atomically
from ostools.results.files import encoded_fields
from ostools.sweep.cell_file import UNREADABLE, file_hash
from ostools.sweep.store import OwnDirectory, disk_errors

MARK = "reproduction.json"
_FORM = 2


class Parts(OwnDirectory):
    """Reads and writes the directory of a reproduction."""

    MARK, OF = MARK, "`ostools reproduce`"

    @contextmanager
    def locked(self) -> Iterator[None]:
        with super().locked():
            text = json.dumps({"form": _FORM, "what": "ostools reproduce"})
            write_atomically(
                self.directory / MARK, lambda part: part.write_text(text, encoding="utf-8")
            )
            yield

    def keep(self, name: str, key: str, results: Mapping[str, Result], seconds: float) -> None:
        """Store a part: its results, and after them the record by which they are found."""
        folder = self.directory / name
        for result in results.values():
            if not type(result).__module__.startswith("ostools.") or encoded_fields(result) is None:
                raise InputError(
                    f"{name}: expected results of ostools, found {type(result).__name__}"
                )
        with disk_errors(folder, "cannot be written"):
            folder.mkdir(exist_ok=True)
        files = {file: result.save(folder / f"{file}.parquet") for file, result in results.items()}
        hashes = {file: file_hash(path.read_bytes()) for file, path in files.items()}
        text = json.dumps(
            {"form": _FORM, "key": key, "seconds": seconds, "results": hashes}, indent=1
        )
        write_atomically(self._record(name), lambda part: part.write_text(text, encoding="utf-8"))

    def results(self, name: str, key: str) -> dict[str, Result] | None:
        """The stored results of a part under this key; None where it has to be measured."""
        path = self._record(name)
        try:
            record = json.loads(read_bytes(path, JSON_LIMIT))
            if record["form"] != _FORM or record["key"] != key:
                self.say(
                    f"{name}: was measured with another model, other arguments or other code; it is measured again"
                )
                return None
            return {
                file: self._read(name, file, digest) for file, digest in record["results"].items()
            }
        except FileNotFoundError as error:
            if path.exists():
                self.say(f"{name}: {error.filename} is missing; it is measured again")
            return None
        except UNREADABLE as error:
            self.say(
                f"{name}: what is stored cannot be read ({type(error).__name__}); it is measured again"
            )
            return None

    def has(self, name: str) -> bool:
        """Whether a part was measured, under any key."""
        return self._record(name).exists()

    def seconds(self, name: str) -> float:
        """Seconds that a stored part took to measure."""
        return float(json.loads(read_bytes(self._record(name), JSON_LIMIT))["seconds"])

    def _record(self, name: str) -> Path:
        return self.directory / f"{name}.json"

    def _read(self, name: str, file: str, written_hash: str) -> Result:
        """A stored result. Raises `ValueError` where its bytes are not those that were written."""
        path = self.directory / name / f"{Path(file).name}.parquet"
        if file_hash(read_bytes(path, TABLE_LIMIT)) != written_hash:
            raise ValueError("its bytes are not those that were written")
        return load_result(path)
