"""Paths that a user gives."""

from __future__ import annotations

import os
from pathlib import Path

from ostools.ground.errors import InputError, short_repr

LONGEST_NAME = 255
"""Bytes of a file's name, on every usual file system."""


def checked_path(path: object, what: str = "path") -> Path:
    """The path, if a file can have it. Raises `InputError`, which calls it `what`, for another
    type, and for a name of over 255 bytes."""
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"{what}: expected a path, found {short_repr(path)}")
    if any(len(os.fsencode(name)) > LONGEST_NAME for name in Path(path).parts):
        raise InputError(
            f"{what}: expected a path, found {short_repr(path)}, which no file can have"
        )
    return Path(path)
