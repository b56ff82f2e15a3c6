"""The whole numbers that a caller gives: lengths, seeds, counts. One refusal for what is none, whoever asked for it."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral
from typing import Any

from ostools.ground.errors import InputError, short_repr

_LONGEST = 2**31 - 1
_LAST_SEED = 2**62


def whole_numbers(what: str, values: Any, least: int = 0, most: int = _LAST_SEED, example: object = None) -> list[int]:
    """Each once, in the order given; a number by itself is a list of one.

    Raises `InputError`, which calls them `what`, for none, for what is no whole number, and for one out of range.
    """
    numbers: list[Any] = (
        list(values) if isinstance(values, Iterable) and not isinstance(values, str | bytes) else [values]
    )
    if not numbers or (wrong := [n for n in numbers if not _is_whole(n) or n < least]):
        description = short_repr(wrong[0]) if numbers else "none"
        hint = "" if example is None else f"; for example {example}"
        raise InputError(f"{what}: expected whole numbers of at least {least}, found {description}{hint}")
    if max(numbers) > most:
        raise InputError(f"{what}: expected whole numbers of at most {most:,}, found {max(numbers)}")
    return list(dict.fromkeys(map(int, numbers)))


def whole_number(what: str, value: Any, least: int = 0) -> int:
    """One such number."""
    if not _is_whole(value) or value < least:
        raise InputError(f"{what}: expected a whole number of at least {least}, found {short_repr(value)}")
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
