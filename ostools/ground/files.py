"""Bytes and text of a file that a user names, of regular files alone and up to a limit.

A device never ends and a named pipe waits for ever; both are refused before they are read. A file
that grows while it is read ends at the limit too.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from ostools.ground.errors import InputError, short_repr

JSON_LIMIT = 64 << 20
"""Bytes of a JSON file; the largest known index or tokenizer has a few MB."""
TEXT_LIMIT = 64 << 20
"""Bytes of a file of prompts, of a sweep, of a template."""
TABLE_LIMIT = 2 << 30
"""Bytes of a file of texts or of a stored table."""
LONGEST_NAME = 255
"""Bytes of a file's name, on every usual file system."""


def checked_path(path: object, what: str = "path") -> Path:
    """The path, if a file can have it. Raises `InputError`, which calls it `what`, for another
    type, impossible letters, and a name of over 255 bytes."""
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"{what}: expected a path, found {short_repr(path)}")
    text = os.fspath(path)
    try:
        names = os.fsencode(text).split(os.fsencode(os.sep))
        is_possible = not any(b"\0" in name or len(name) > LONGEST_NAME for name in names)
    except UnicodeEncodeError:
        is_possible = False
    if not is_possible:
        raise InputError(
            f"{what}: expected a path, found {short_repr(text)}, which no file can have"
        )
    return Path(text)


def open_regular(path: Path, limit: int | None = None) -> BinaryIO:
    """The file opened for reading, links followed.

    Raises `InputError` for a pipe, a device, a socket or a directory, and for more than `limit`
    bytes; `OSError` where there is no such file.
    """
    checked_path(path)
    # Without waiting: opening a pipe blocks until somebody writes to it.
    descriptor = os.open(
        path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    )
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise InputError(
                f"expected a regular file at {_name(path)}, found {_kind(status.st_mode)}"
            )
        if limit is not None and status.st_size > limit:
            raise _too_large(path, limit)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_bytes(path: Path, limit: int) -> bytes:
    """The content of a regular file. Raises as `open_regular` does."""
    with open_regular(path, limit) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise _too_large(path, limit)
    return content


def read_text(path: Path, limit: int = TEXT_LIMIT, encoding: str = "utf-8") -> str:
    """The text of a regular file, line ends as they are in Python. Raises as `open_regular` does,
    and `UnicodeDecodeError`.
    """
    return read_bytes(path, limit).decode(encoding).replace("\r\n", "\n").replace("\r", "\n")


def require_regular(path: Path, limit: int | None = None) -> None:
    """Refuse, as `open_regular` does, a path that a library is about to read by itself."""
    open_regular(path, limit).close()


def _name(path: Path) -> str:
    return repr(os.fspath(path)[-200:])


def _too_large(path: Path, limit: int) -> InputError:
    size = f"{limit >> 20} MiB" if limit >= 1 << 20 else f"{limit} bytes"
    return InputError(
        f"expected at most {size} in {_name(path)}, found more: is it the right file?"
    )


def _kind(mode: int) -> str:
    kinds = (
        (stat.S_ISDIR, "a directory"),
        (stat.S_ISFIFO, "a named pipe"),
        (stat.S_ISSOCK, "a socket"),
    )
    return next((words for test, words in kinds if test(mode)), "a device")
