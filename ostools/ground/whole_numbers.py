"""The whole numbers that a caller gives: lengths, seeds, counts; and lengths as users write them,
on the command line and in sweep files. One refusal for what is none, whoever asked for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from numbers import Integral
from typing import Annotated, TypeGuard

from ostools.ground.errors import InputError, short_repr

_LONGEST = 2**31 - 1
_LAST_SEED = 2**62
_LARGEST = 2**63 - 1  # the largest that torch takes
LONGEST = 1_000_000
"""The largest length that can be written."""
_PART = re.compile(r"\s*(\d{1,9})\s*(?::\s*(\d{1,9})\s*)?(?::\s*(\d{1,9})\s*)?", re.ASCII)


def whole_numbers(what: str, values: object, least: int = 0, most: int = _LAST_SEED) -> list[int]:
    """Each once, in the order given; a number by itself is a list of one.

    Raises `InputError`, which calls them `what`, for none, for what is no whole number, and for one
    out of range.
    """
    # A number by itself may also be an array without an axis.
    is_one = isinstance(values, str | bytes) or getattr(values, "ndim", 1) == 0
    numbers = list(values) if isinstance(values, Iterable) and not is_one else [values]
    if not numbers:
        raise InputError(f"{what}: expected whole numbers of at least {least}, found none")
    checked = [whole_number(what, n, least, most, "whole numbers") for n in numbers]
    return list(dict.fromkeys(checked))


def whole_number(
    what: str, value: object, least: int = 0, most: int = _LARGEST, noun: str = "a whole number"
) -> int:
    """One such number."""
    if not is_whole(value) or not least <= value <= most:
        bound = f"at most {most:,}" if is_whole(value) and value > most else f"at least {least}"
        name = f"{what}: " if what else ""
        raise InputError(f"{name}expected {noun} of {bound}, found {short_repr(value)}")
    return int(value)


def at_least(least: int) -> Callable[[object], int]:
    """The reader of an annotation (`ground.arguments`) that takes whole numbers from `least` on."""
    return partial(whole_number, "", least=least)


def checked_lengths(lengths: object) -> list[int]:
    """Numbers of items, ascending and without doubles."""
    return sorted(whole_numbers("numbers of items", lengths, 1, _LONGEST))


def checked_seeds(seeds: object) -> list[int]:
    """Seeds in their order, without doubles."""
    return whole_numbers("seeds", seeds)


def is_whole(value: object) -> TypeGuard[int]:
    """Whether it is a whole number, also one of numpy's; True and False are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def parse_lengths(text: str, what: str = "--lengths", least: int = 1) -> list[int]:
    """`1:512` (both ends included), `4:48:4` (every fourth), `8,16,32`, or these joined by commas, as
    increasing lengths without repeats.

    Raises `InputError`, which calls them `what`, for anything else.
    """
    lengths: set[int] = set()
    for part in text.split(","):
        match = _PART.fullmatch(part)
        low, high, step = 0, -1, 1
        if match is not None:
            low, high, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if not least <= low <= high <= LONGEST or not step:
            raise InputError(
                f"{what} {text[:60]!r}: expected a range such as 1:512 or 4:48:4, or a list such as 8,16,32, of "
                f"numbers from {least} to {LONGEST}, found {part.strip()[:20]!r}"
            )
        lengths.update(range(low, high + 1, step))
    return sorted(lengths)


def in_a_row(lengths: Sequence[int]) -> list[list[int]]:
    """Whole numbers in ascending order, in groups of those that follow each other."""
    import numpy as np  # not at the start of every command

    ends = np.flatnonzero(np.diff(lengths) != 1) + 1
    return [run.tolist() for run in np.split(np.asarray(lengths), ends) if run.size]


Seed = Annotated[int, at_least(0)]
Count = Annotated[int, at_least(1)]
Lengths = Annotated[Iterable[int], checked_lengths]
