"""The names that a caller gives: one refusal for what is none of the known ones, whoever asked for
them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, TypeVar, cast, get_args

from ostools.ground.errors import InputError, short_repr, unknown_name

Word = TypeVar("Word", bound=str)

Linearisation = Literal["full", "frozen", "frozen-attention", "frozen-norm", "detached"]
"""What is held constant in a derivative: nothing, patterns and norm scales, one of the two, or the
MLPs' activations too.
"""
LINEARISATIONS: tuple[Linearisation, ...] = get_args(Linearisation)
SketchedMethod = Literal["exact", "sketch", "estimate"]
Method = Literal["auto", SketchedMethod]
"""How the norms of a Jacobian are taken; "auto" decides by the model's size and the free memory."""
Norm = Literal["operator", "frobenius"]
Position = Literal["answer", "prompt-end", "last-item"]
"""Where a task's prompt is read (`measure.position`)."""

METHOD_KINDS: dict[str, str] = {"exact": "measured", "sketch": "estimated", "estimate": "estimated"}
"""What a sensitivity's numbers are, by its column `method`."""


def known_norm(methods: Iterable[str]) -> Norm:
    """The norm that every row has: the operator norm, Theorem 5.1's, of exact rows; of others a
    bound of it alone is known.
    """
    return "operator" if all(method == "exact" for method in methods) else "frobenius"


def checked_name(what: str, name: object, known_names: Iterable[str]) -> str:
    """The name, where it is a known one; anything else is an `InputError` with the nearest."""
    known_names = tuple(known_names)
    if not isinstance(name, str) or name not in known_names:
        raise unknown_name(what, name, known_names)
    return name


def checked_names(what: str, names: Iterable[str], known_names: Iterable[str]) -> tuple[str, ...]:
    """The names in order and without doubles; none at all, or an unknown one, is an `InputError`. A
    name alone is one.
    """
    known_names = tuple(known_names)
    return tuple(checked_name(what, name, known_names) for name in distinct(what, names))


def distinct(what: str, names: Word | Iterable[Word]) -> tuple[Word, ...]:
    """Names in order and without doubles, once they are checked (`ground.arguments`); `InputError`
    for none at all. A name alone is one."""
    name_list = tuple(dict.fromkeys([names] if isinstance(names, str) else names))
    if not name_list:
        raise InputError(f"{what}: expected at least one, found none")
    return cast(tuple[Word, ...], name_list)


def checked_path(path: object, what: str = "path") -> Path:
    """The path, if a file can have it. Raises `InputError`, which calls it `what`, for another
    type, and for a name of over 255 bytes, the most on every usual file system."""
    is_path = isinstance(path, str | os.PathLike)
    if not is_path or any(len(os.fsencode(name)) > 255 for name in Path(path).parts):
        raise InputError(f"{what}: expected a path that a file can have, found {short_repr(path)}")
    return Path(path)


def is_loopback(host: str) -> bool:
    """Whether the name is of this machine, which nobody else can listen to or reach."""
    from ipaddress import ip_address  # for this line alone, and not at the start of every command

    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
