"""The one error that a user can cause.

Every refusal of ostools is an `InputError`: it says in one line what was expected, what was found
and what to do, and the command line prints just that line and exits with code 2.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

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
