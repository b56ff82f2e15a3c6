"""The whole numbers that a caller gives: lengths, seeds, counts; and lengths as users write them,
on the command line and in sweep files. One refusal for what is none, whoever asked for it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from numbers import Integral
from typing import Any

from ostools.ground.errors import InputError, short_repr

_LONGEST = 2**31 - 1
_LAST_SEED = 2**62
_LARGEST = 2**63 - 1  # the largest that torch takes
_NONE = object()
LONGEST = 1_000_000
"""The largest length that can be written."""
_PART = re.compile(r"\s*(\d{1,9})\s*(?::\s*(\d{1,9})\s*)?", re.ASCII)


def whole_numbers(
    what: str, values: Any, least: int = 0, most: int = _LAST_SEED, example: object = None
) -> list[int]:
    """Each once, in the order given; a number by itself is a list of one.

    Raises `InputError`, which calls them `what`, for none, for what is no whole number, and for one
    out of range.
    """
    try:
        numbers: list[Any] = [values] if isinstance(values, str | bytes) else list(values)
    except TypeError:  # a number by itself, also as an array without an axis
        numbers = [values]
    hint = "" if example is None else f"; for example {example}"
    for number in numbers or [_NONE]:
        _check(what, number, "whole numbers", least, most, hint)
    return list(dict.fromkeys(map(int, numbers)))


def whole_number(what: str, value: Any, least: int = 0, most: int = _LARGEST) -> int:
    """One such number."""
    _check(what, value, "a whole number", least, most)
    return int(value)


def _check(what: str, value: Any, noun: str, least: int, most: int, hint: str = "") -> None:
    if not is_whole(value) or value < least:
        found = "none" if value is _NONE else short_repr(value)
        raise InputError(f"{what}: expected {noun} of at least {least}, found {found}{hint}")
    if value > most:
        raise InputError(f"{what}: expected {noun} of at most {most:,}, found {short_repr(value)}")


def checked_lengths(lengths: Any) -> list[int]:
    """Numbers of items, ascending and without doubles."""
    return sorted(whole_numbers("lengths", lengths, 1, _LONGEST, range(1, 257)))


def checked_seeds(seeds: Any) -> list[int]:
    """Seeds in their order, without doubles."""
    return whole_numbers("seeds", seeds, example="range(3)")


def is_whole(value: Any) -> bool:
    """Whether it is a whole number, also one of numpy's; true and false are numbers to Python only."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def parse_lengths(text: str, what: str = "--lengths", least: int = 1) -> list[int]:
    """`1:512` (both ends included), `8,16,32`, or both joined by commas, as increasing lengths
    without repeats.

    Raises `InputError`, which calls them `what`, for anything else.
    """
    lengths: set[int] = set()
    for part in text.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise InputError(
                f"{what} {text[:60]!r}: expected a range such as 1:512 or a list such as 8,16,32, found {part[:20]!r}"
            )
        low, high = int(match[1]), int(match[2] or match[1])
        if high < low:
            raise InputError(f"{what} {text[:60]!r}: the range {part.strip()!r} runs backwards")
        if low < least or high > LONGEST:
            raise InputError(
                f"{what} {text[:60]!r}: expected numbers from {least} to {LONGEST}, found {part.strip()}"
            )
        lengths.update(range(low, high + 1))
    return sorted(lengths)


def in_a_row(lengths: Sequence[int]) -> list[list[int]]:
    """Whole numbers in ascending order, in groups of those that follow each other."""
    runs: list[list[int]] = []
    for n in lengths:
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    return runs
