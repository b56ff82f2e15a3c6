"""Texts of a corpus, from a list or a file that is read as hostile input; and windows: pieces of
exactly so many tokens, drawn by a seed from texts that are long enough.

A `.jsonl` file has an object a line with a key "text", a `.parquet` file a column "text", anything
else is plain text whose texts are parted by empty lines. Cost: one read; all texts are held in
memory.

A window begins and ends with the special tokens that the tokenizer puts around any text, which
count; between them stands a piece of one text. Nothing is padded and nothing repeated. Which piece
of a text is taken depends on the seed, the text's place in the corpus and the length alone, on no
other text. Cost: the tokenizer, once over each text that is looked at.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

from ostools.ground.errors import InputError, short_repr, unknown_name
from ostools.ground.files import TABLE_LIMIT, read_text, require_regular
from ostools.models.tokenizer_calls import lead, text_ids

_FIELD = "text"
"""The key or column that holds the texts."""


@dataclass(frozen=True)
class Window:
    """A piece of the text at place `text`, whose tokens stand from `start` on among the text's own;
    `ids`: with the special tokens before it."""

    text: int
    start: int
    ids: tuple[int, ...]


@dataclass(frozen=True)
class WindowSet:
    """The windows of one length, and how many texts were passed over as too short for one."""

    length: int
    windows: tuple[Window, ...]
    too_short: int


def draw(
    tokenizer: Any, texts: Sequence[str], lengths: Sequence[int], *, count: int | None, seed: int
) -> list[WindowSet]:
    """Of each length a window of `count` texts (None: of all that are long enough).

    Texts are gone through in a random order, those that are too short passed over and counted.
    Raises `InputError` where no text is long enough, and for a text that cannot be encoded, by its
    place.
    """
    before = lead(tokenizer)
    ids_by_place: dict[int, list[int]] = {}
    order: list[int] = np.random.default_rng(seed).permutation(len(texts)).tolist()
    window_sets = []
    for length in lengths:
        piece = length - len(before)
        if piece < 1:
            raise InputError(
                f"lengths: expected room for text beside {length - piece} special tokens, found {length}"
            )
        windows, too_short, longest = [], 0, 0
        for place in order:
            if len(windows) == count:
                break
            if place not in ids_by_place:
                ids_by_place[place] = _ids(tokenizer, texts[place], place)
            ids = ids_by_place[place]
            longest = max(longest, len(ids))
            if len(ids) < piece:
                too_short += 1
                continue
            start = int(
                np.random.default_rng((seed, place, length)).integers(
                    0, len(ids) - piece, endpoint=True
                )
            )
            windows.append(Window(place, start, (*before, *ids[start : start + piece])))
        if not windows:
            raise InputError(
                f"lengths: expected a text of at least {piece} tokens for windows of {length}, found {len(texts)} texts of at "
                f"most {longest}: take shorter windows, or longer texts"
            )
        window_sets.append(WindowSet(length, tuple(windows), too_short))
    return window_sets


def _ids(tokenizer: Any, text: str, place: int) -> list[int]:
    if not text.strip():
        return []
    try:
        return text_ids(tokenizer, text)
    except InputError as error:
        raise InputError(f"text {place}: {error}") from error


_PARTED = re.compile(r"\n(?:[ \t]*\n)+")


def read_texts(texts: str | Path | Sequence[str]) -> list[str]:
    """Every text, in order.

    Raises `InputError`, which names the file, the line and the nearest field, for what cannot be
    read, for a value that is no text, and where there are none.
    """
    if isinstance(texts, str | Path):
        text_list, where = _of_file(Path(texts)), str(texts)
    elif not isinstance(texts, Sequence):
        raise InputError(f"texts: expected a file or a list of texts, found {short_repr(texts)}")
    else:
        text_list, where = list(texts), "texts"
        if wrong := [
            (place, text) for place, text in enumerate(text_list) if not isinstance(text, str)
        ]:
            raise InputError(
                f"texts: expected texts, found {short_repr(wrong[0][1])} at {wrong[0][0]}"
            )
    if not any(text.strip() for text in text_list):
        raise InputError(f"{where}: expected at least one text, found none")
    return text_list


def texts_hash(texts: Sequence[str]) -> str:
    """The SHA-256 of the texts in their order; of each its length first, so that no two lists have
    the same.
    """
    sha = hashlib.sha256()
    for text in texts:
        content = text.encode("utf-8", "surrogatepass")
        sha.update(f"{len(content)}\n".encode() + content)
    return sha.hexdigest()


def _of_file(path: Path) -> list[str]:
    kinds = {".jsonl": _of_jsonl, ".parquet": _of_parquet}
    try:
        require_regular(path, TABLE_LIMIT)
        read = kinds.get(path.suffix.lower())
        if read is not None:
            return list(read(path))
        return [part for part in _PARTED.split(read_text(path, TABLE_LIMIT)) if part.strip()]
    except FileNotFoundError:
        raise InputError(
            f"{path}: expected a file of texts (.jsonl, .parquet or plain text), found no such file"
        ) from None
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: expected UTF-8 text, found other bytes at offset {error.start}"
        ) from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, pa.ArrowException) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: cannot be read: {' '.join(str(error).split())[:200]}") from error


def _of_jsonl(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row: Any = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InputError(
                    f"{path}, line {number}: expected a JSON object, found {short_repr(line)}"
                ) from error
            if not isinstance(row, dict):
                raise InputError(
                    f"{path}, line {number}: expected a JSON object, found {short_repr(row)}"
                )
            if _FIELD not in row:
                raise InputError(
                    f"{path}, line {number}: {unknown_name('field', _FIELD, map(str, row))}"
                )
            if not isinstance(row[_FIELD], str):
                raise InputError(
                    f"{path}, line {number}: expected text in {_FIELD!r}, found {short_repr(row[_FIELD])}"
                )
            yield row[_FIELD]


def _of_parquet(path: Path) -> Iterator[str]:
    schema = parquet.read_schema(path)
    if _FIELD not in schema.names:
        raise InputError(f"{path}: {unknown_name('field', _FIELD, schema.names)}")
    kind = schema.field(_FIELD).type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise InputError(f"{path}: expected a column of text in {_FIELD!r}, found one of {kind}")
    values = parquet.read_table(path, columns=[_FIELD])[_FIELD].to_pylist()
    if None in values:
        raise InputError(
            f"{path}: expected text in {_FIELD!r}, found none in row {values.index(None)}"
        )
    yield from values
