"""The errors of this package, and what it takes for whole numbers."""

from __future__ import annotations

from numbers import Integral


class HookError(ValueError):
    """A hook cannot be placed, or did not do what it was asked to. The message says what was
    expected and what was found.
    """


class RangeError(HookError):
    """A number is beyond what a format holds, or is not finite."""


def is_whole(value: object) -> bool:
    """Whether it is a whole number, also one of numpy's; true and false are numbers to Python only."""
    return isinstance(value, Integral) and not isinstance(value, bool)
