"""Windows of a corpus: pieces of exactly so many tokens, drawn by a seed from texts that are long enough.

A window begins and ends with the special tokens that the tokenizer puts around any text, which count; between them stands a
piece of one text. Nothing is padded and nothing repeated. Which piece of a text is taken depends on the seed, the text's place
in the corpus and the length alone, on no other text. Cost: the tokenizer, once over each text that is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ostools.ground.errors import InputError
from ostools.models.tokens import frame, text_ids


@dataclass(frozen=True)
class Window:
    """A piece of the text at place `text`, whose tokens stand from `start` on among the text's own; `ids`: with the special
    tokens around it."""

    text: int
    start: int
    ids: tuple[int, ...]


@dataclass(frozen=True)
class WindowSet:
    """The windows of one length, and what was passed over: how many texts are too short for one of them."""

    length: int
    windows: tuple[Window, ...]
    too_short: int


def draw(
    tokenizer: Any, texts: Sequence[str], lengths: Sequence[int], *, count: int | None, per_text: int, seed: int
) -> list[WindowSet]:
    """Of each length the windows of `count` texts (None: of all that are long enough), at most `per_text` of each.

    Texts are gone through in a random order, those that are too short passed over and counted. Windows of one text do not
    overlap: one that is too short for `per_text` of them gives fewer. Raises `InputError` where no text is long enough, and
    for a text that cannot be encoded, by its place.
    """
    around = frame(tokenizer)
    ids_by_place: dict[int, list[int]] = {}
    order: list[int] = np.random.default_rng(seed).permutation(len(texts)).tolist()
    window_sets = []
    for length in lengths:
        piece = length - len(around[0]) - len(around[1])
        if piece < 1:
            raise InputError(f"lengths: expected room for text beside {length - piece} special tokens, found {length}")
        windows, taken_texts, short, longest = [], 0, 0, 0
        for place in order:
            if taken_texts == count:
                break
            if place not in ids_by_place:
                ids_by_place[place] = _ids(tokenizer, texts[place], place)
            longest = max(longest, len(ids_by_place[place]))
            starts = _starts(len(ids_by_place[place]), piece, per_text, (seed, place, length))
            taken_texts, short = taken_texts + bool(starts), short + (not starts)
            for start in starts:
                ids = (*around[0], *ids_by_place[place][start : start + piece], *around[1])
                windows.append(Window(place, start, ids))
        if not windows:
            raise InputError(
                f"lengths: expected a text of at least {piece} tokens for windows of {length}, found {len(texts)} texts of at "
                f"most {longest}: take shorter windows, or longer texts"
            )
        window_sets.append(WindowSet(length, tuple(windows), short))
    return window_sets


def _ids(tokenizer: Any, text: str, place: int) -> list[int]:
    if not text.strip():
        return []
    try:
        return text_ids(tokenizer, text)
    except InputError as error:
        raise InputError(f"text {place}: {error}") from error


def _starts(tokens: int, piece: int, most: int, seed: tuple[int, ...]) -> list[int]:
    """Where pieces begin: at most `most`, every choice of places without an overlap as likely as any other, but for ties."""
    count = min(most, tokens // piece)
    gaps = np.random.default_rng(seed).integers(0, tokens - count * piece, size=count, endpoint=True) if count else []
    return [int(gap) + index * piece for index, gap in enumerate(np.sort(gaps))]
