"""The one error of this package, and the wording of a name that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class HookError(ValueError):
    """A hook cannot be placed, or did not do what it was asked to; the message says what was expected and found."""


def nearest(found: object, known: Iterable[str]) -> str:
    """The end of an error message: the nearest of the right names, then all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(str(found), names, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    return f"{hint}known are {', '.join(names)}"
