"""Texts of a corpus, from a list or a file; and windows: pieces of exactly so many tokens, drawn by
a seed from texts that are long enough.

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
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from ostools.ground.errors import InputError, in_words, short_repr
from ostools.models.tokenizer_calls import lead, text_ids

_FIELD = "text"
"""The key or column that holds the texts."""
_PARTED = re.compile(r"\n(?:[ \t]*\n)+")


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
    order: list[int] = np.random.default_rng(seed).permutation(len(texts)).tolist()

    @cache
    def ids_of(place: int) -> list[int]:
        try:
            return text_ids(tokenizer, texts[place]) if texts[place].strip() else []
        except InputError as error:
            raise InputError(f"text {place}: {error}") from error

    window_sets = []
    for length in lengths:
        piece = length - len(before)
        if piece < 1:
            raise InputError(
                f"lengths: expected room for text beside {len(before)} special tokens, found {length}"
            )
        windows, too_short = [], 0
        for place in order:
            if len(windows) == count:
                break
            last = len(ids_of(place)) - piece
            if last < 0:
                too_short += 1
                continue
            random = np.random.default_rng((seed, place, length))
            start = int(random.integers(0, last, endpoint=True))
            windows.append(Window(place, start, (*before, *ids_of(place)[start : start + piece])))
        if not windows:
            raise InputError(
                f"lengths: expected a text of at least {piece} tokens for windows of {length}, found {len(texts)} texts, "
                "all shorter: take shorter windows, or longer texts"
            )
        window_sets.append(WindowSet(length, tuple(windows), too_short))
    return window_sets


def read_texts(texts: str | Path | Sequence[str]) -> list[str]:
    """Every text, in order.

    Raises `InputError` for what cannot be read, for a value that is no text, and where there are
    none.
    """
    is_file = isinstance(texts, str | Path)
    where = str(texts) if is_file else "texts"
    text_list: list[Any] = _of_file(Path(texts)) if is_file else list(texts)
    if wrong := [place for place, text in enumerate(text_list) if not isinstance(text, str)]:
        raise InputError(
            f"{where}: expected texts, found {short_repr(text_list[wrong[0]])} at {wrong[0]}"
        )
    if not any(text.strip() for text in text_list):
        raise InputError(f"{where}: expected at least one text, found none")
    return text_list


def _of_file(path: Path) -> list[Any]:
    try:
        if path.suffix.lower() == ".parquet":
            return pd.read_parquet(path, columns=[_FIELD])[_FIELD].tolist()
        content = path.read_text(encoding="utf-8")
        if path.suffix.lower() == ".jsonl":
            lines = (line for line in content.split("\n") if line.strip())
            return [json.loads(line)[_FIELD] for line in lines]
    except (OSError, ValueError, LookupError, TypeError, pa.ArrowException) as error:
        raise InputError(
            f"{path}: expected plain text, or {_FIELD!r} in each line of a .jsonl file or as a column of a .parquet file, "
            f"found {in_words(error)[:200]}"
        ) from error
    return [part for part in _PARTED.split(content) if part.strip()]


def texts_hash(texts: Sequence[str]) -> str:
    """The SHA-256 of the texts in their order; of each its length first, so that no two lists have
    the same.
    """
    sha = hashlib.sha256()
    for text in texts:
        content = text.encode("utf-8", "surrogatepass")
        sha.update(f"{len(content)}\n".encode() + content)
    return sha.hexdigest()
