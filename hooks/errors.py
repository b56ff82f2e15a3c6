"""The errors of this package."""

from __future__ import annotations


class HookError(ValueError):
    """A hook cannot be placed, or did not do what it was asked to. The message says what was
    expected and what was found.
    """


class FormatError(HookError):
    """A number is beyond what a format holds, or is not finite."""
