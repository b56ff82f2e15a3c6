"""The one error that a user can cause, and checks of the names that a caller gives.

Every refusal of ostools is an `InputError`: it says in one line what was expected, what was found
and what to do, and the command line prints just that line and exits with code 2.
"""

import difflib
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar, cast

Word = TypeVar("Word", bound=str)

OF_A_LEFT_HOOK = "; hooks.clear(model) removes one that an interrupted call left"
"""The end of every refusal of an edit that is active: the user may have no block to leave."""


class InputError(ValueError):
    """A request that cannot be carried out. The message says what was expected, what was found, and
    what to do.
    """


class NonFiniteError(InputError):
    """Numbers that are not finite, or beyond what a dtype or a format holds."""


class InsufficientMemoryError(InputError):
    """What was asked for is forecast not to fit, and was not begun: smaller chunks may fit."""


def in_words(error: BaseException) -> str:
    """An error of whatever kind on one line, with its type; the disk's in its own words."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return " ".join(f"{type(error).__name__}: {error}".split())


def short_repr(value: object) -> str:
    """A value as an error message may quote it: on one line, and short."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


@contextmanager
def refusal(expected: str, remedy: str = "") -> Iterator[None]:
    """Refuse, with what was expected and then the library's own words, whatever another library
    raises within the block.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise refused(expected, error, remedy) from None


def refused(expected: str, error: Exception, remedy: str = "") -> InputError:
    """What was expected, and then the library's own words."""
    return InputError(f"expected {expected}: {in_words(error)[:300].rstrip(': ')}{remedy}")


def unknown_name(what: str, name: object, known_names: Iterable[str]) -> InputError:
    """The error for a name that does not exist, with the nearest that do.

    `what` is the kind of thing in words ("variant"), `name` what the user wrote, `known_names`
    every right name.
    """
    return InputError(f"unknown {what} {short_repr(name)}: {nearest(name, sorted(known_names))}")


def nearest(name: object, known_names: Iterable[str]) -> str:
    """The end of an error message: the nearest of the right names, then all of them, in the order
    that is given.
    """
    names = list(known_names)
    return f"{did_you_mean(name, names)}known are {', '.join(names)}"


def did_you_mean(name: object, known_names: Sequence[str]) -> str:
    """The nearest of the right names, as the question in an error message; empty where none is
    near.
    """
    near = difflib.get_close_matches(str(name), known_names, n=2, cutoff=0.6)
    return f"did you mean {' or '.join(map(repr, near))}? " if near else ""


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
