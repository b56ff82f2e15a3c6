"""Lengths of sequences as users write them, on the command line and in sweep files."""

from __future__ import annotations

from collections.abc import Sequence

from ostools.ground.errors import InputError

LONGEST = 1_000_000


def parse_lengths(text: str, what: str = "--lengths", least: int = 1) -> list[int]:
    """`1:512` (both ends included), `8,16,32`, or both joined by commas, as increasing lengths without repeats.

    Raises `InputError`, which calls them `what`, for anything else.
    """
    lengths: set[int] = set()
    count = 0
    for part in text.split(","):
        first, colon, last = part.partition(":")
        low = _length(first, text, what, least)
        high = _length(last, text, what, least) if colon else low
        if high < low:
            raise InputError(f"{what} {text!r}: the range {part.strip()!r} runs backwards; write {high}:{low}")
        count += high + 1 - low
        if count > LONGEST:  # a few words name more numbers than a memory holds
            raise InputError(f"{what}: expected at most {LONGEST} lengths in all, found more in {text[:60]!r}")
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
        raise InputError(f"{what} {text!r}: expected a range such as 1:512 or a list such as 8,16,32, found {digits!r}")
    # Compared as text first: int() itself refuses thousands of digits.
    if len(digits) > 9 or not least <= int(digits) <= LONGEST:
        raise InputError(f"{what} {text!r}: expected numbers from {least} to {LONGEST}, found {digits[:12]}")
    return int(digits)
