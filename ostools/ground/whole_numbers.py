"""The whole numbers that a caller gives: lengths, seeds, counts; and lengths as users write them,
on the command line and in sweep files. One refusal for what is none, whoever asked for it."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

from ostools.ground.errors import InputError, short_repr

_LONGEST = 2**31 - 1
_LAST_SEED = 2**62
_LARGEST = 2**63 - 1  # the largest that torch takes
LONGEST = 1_000_000
"""The largest length that can be written, and how many of them at most."""


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
    if not numbers or (wrong := [n for n in numbers if not _is_whole(n) or n < least]):
        description = short_repr(wrong[0]) if numbers else "none"
        hint = "" if example is None else f"; for example {example}"
        raise InputError(
            f"{what}: expected whole numbers of at least {least}, found {description}{hint}"
        )
    if max(numbers) > most:
        raise InputError(
            f"{what}: expected whole numbers of at most {most:,}, found {max(numbers)}"
        )
    return list(dict.fromkeys(map(int, numbers)))


def whole_number(what: str, value: Any, least: int = 0, most: int = _LARGEST) -> int:
    """One such number."""
    if not _is_whole(value) or value < least:
        raise InputError(
            f"{what}: expected a whole number of at least {least}, found {short_repr(value)}"
        )
    if value > most:
        raise InputError(
            f"{what}: expected a whole number of at most {most:,}, found {short_repr(value)}"
        )
    return int(value)


def checked_lengths(lengths: Any) -> list[int]:
    """Numbers of items, ascending and without doubles."""
    return sorted(whole_numbers("lengths", lengths, 1, _LONGEST, range(1, 257)))


def checked_seeds(seeds: Any) -> list[int]:
    """Seeds in their order, without doubles."""
    return whole_numbers("seeds", seeds, example="range(3)")


def _is_whole(value: Any) -> bool:
    """Also one of numpy's; true and false are numbers to Python only."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def parse_lengths(text: str, what: str = "--lengths", least: int = 1) -> list[int]:
    """`1:512` (both ends included), `8,16,32`, or both joined by commas, as increasing lengths
    without repeats.

    Raises `InputError`, which calls them `what`, for anything else.
    """
    lengths: set[int] = set()
    count = 0
    for part in text.split(","):
        first, colon, last = part.partition(":")
        low = _length(first, text, what, least)
        high = _length(last, text, what, least) if colon else low
        if high < low:
            raise InputError(
                f"{what} {text!r}: the range {part.strip()!r} runs backwards; write {high}:{low}"
            )
        count += high + 1 - low
        if count > LONGEST:  # a few words name more numbers than a memory holds
            raise InputError(
                f"{what}: expected at most {LONGEST} lengths in all, found more in {text[:60]!r}"
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


def _length(word: str, text: str, what: str, least: int) -> int:
    digits = word.strip()
    if not (digits.isascii() and digits.isdigit()):
        raise InputError(
            f"{what} {text!r}: expected a range such as 1:512 or a list such as 8,16,32, found {digits!r}"
        )
    # Compared as text first: int() itself refuses thousands of digits.
    if len(digits) > 9 or not least <= int(digits) <= LONGEST:
        raise InputError(
            f"{what} {text!r}: expected numbers from {least} to {LONGEST}, found {digits[:12]}"
        )
    return int(digits)
