"""The names that a caller gives: one refusal for what is none of the known ones, whoever asked for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from ostools.ground.errors import InputError, shown, unknown_name

METHOD_KINDS = {"exact": "measured", "sketch": "estimated", "estimate": "estimated"}
"""What a sensitivity's numbers are, by its column `method`."""


def known_norm(methods: Iterable[str]) -> Literal["operator", "frobenius"]:
    """The norm that every row has: the operator norm, Theorem 5.1's, of exact rows; of others a bound of it alone is known."""
    return "operator" if all(method == "exact" for method in methods) else "frobenius"


def checked_name(what: str, found: Any, known: Iterable[str]) -> str:
    """The name, where it is a known one; anything else is an `InputError` with the nearest."""
    known = tuple(known)
    if not isinstance(found, str) or found not in known:
        raise unknown_name(what, found, known)
    return found


def checked_names(what: str, names: Any, known: Iterable[str]) -> tuple[str, ...]:
    """The names in order and without doubles; none at all, or an unknown one, is an `InputError`. A name alone is one."""
    known = tuple(known)
    chosen = [names] if isinstance(names, str) or not isinstance(names, Iterable) else list(names)
    if not chosen:
        raise InputError(f"expected at least one {what} of {', '.join(known)}, found none")
    return tuple(dict.fromkeys(checked_name(what, name, known) for name in chosen))


def several(what: str, given: Any, example: str) -> list[Any]:
    """What is given one after another, as a list; a text is one thing, not its letters.

    Raises `InputError`, which calls them `what`, for none and for what cannot be gone through.
    """
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise InputError(f"{what}: expected a list such as {example}, found {shown(given)}")
    found = list(given)
    if not found:
        raise InputError(f"{what}: expected at least one, found none; for example {example}")
    return found
