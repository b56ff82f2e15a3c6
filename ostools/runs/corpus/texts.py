"""The texts of a corpus: a list, or a file of them, read as hostile input.

A `.jsonl` file has an object a line, a `.parquet` file a column, anything else is plain text whose texts are parted by empty
lines. Cost: one read; all texts are held in memory.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

from ostools.ground.errors import InputError, short_repr, unknown_name
from ostools.ground.files.reading import TABLE_LIMIT, read_text, require_regular

_PARTED = re.compile(r"\n(?:[ \t]*\n)+")


def read_texts(texts: str | Path | Sequence[str], field: str = "text") -> list[str]:
    """Every text, in order. `field`: the key or column that holds them, where the file has such.

    Raises `InputError`, which names the file, the line and the nearest field, for what cannot be read, for a value that is no
    text, and where there are none.
    """
    if isinstance(texts, str | Path):
        text_list, where = _of_file(Path(texts), field), str(texts)
    elif not isinstance(texts, Sequence):
        raise InputError(f"texts: expected a file or a list of texts, found {short_repr(texts)}")
    else:
        text_list, where = list(texts), "texts"
        if wrong := [(place, text) for place, text in enumerate(text_list) if not isinstance(text, str)]:
            raise InputError(f"texts: expected texts, found {short_repr(wrong[0][1])} at {wrong[0][0]}")
    if not any(text.strip() for text in text_list):
        raise InputError(f"{where}: expected at least one text, found none")
    return text_list


def texts_hash(texts: Sequence[str]) -> str:
    """The SHA-256 of the texts in their order; of each its length first, so that no two lists have the same."""
    sha = hashlib.sha256()
    for text in texts:
        content = text.encode("utf-8", "surrogatepass")
        sha.update(f"{len(content)}\n".encode() + content)
    return sha.hexdigest()


def _of_file(path: Path, field: str) -> list[str]:
    kinds = {".jsonl": _of_jsonl, ".parquet": _of_parquet}
    try:
        require_regular(path, TABLE_LIMIT)
        read = kinds.get(path.suffix.lower())
        return list(_plain(read_text(path, TABLE_LIMIT)) if read is None else read(path, field))
    except FileNotFoundError:
        raise InputError(
            f"{path}: expected a file of texts (.jsonl, .parquet or plain text), found no such file"
        ) from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: expected UTF-8 text, found other bytes at offset {error.start}") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, pa.ArrowException) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: cannot be read: {' '.join(str(error).split())[:200]}") from error


def _plain(text: str) -> list[str]:
    return [part for part in _PARTED.split(text) if part.strip()]


def _of_jsonl(path: Path, field: str) -> Iterator[str]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row: Any = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InputError(f"{path}, line {number}: expected a JSON object, found {short_repr(line)}") from error
            if not isinstance(row, dict):
                raise InputError(f"{path}, line {number}: expected a JSON object, found {short_repr(row)}")
            if field not in row:
                raise InputError(f"{path}, line {number}: {unknown_name('field', field, map(str, row))}")
            if not isinstance(row[field], str):
                raise InputError(f"{path}, line {number}: expected text in {field!r}, found {short_repr(row[field])}")
            yield row[field]


def _of_parquet(path: Path, field: str) -> Iterator[str]:
    schema = parquet.read_schema(path)
    if field not in schema.names:
        raise InputError(f"{path}: {unknown_name('field', field, schema.names)}")
    kind = schema.field(field).type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise InputError(f"{path}: expected a column of text in {field!r}, found one of {kind}")
    values = parquet.read_table(path, columns=[field])[field].to_pylist()
    if None in values:
        raise InputError(f"{path}: expected text in {field!r}, found none in row {values.index(None)}")
    yield from values
