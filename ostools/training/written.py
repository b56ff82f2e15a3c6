"""How training writes a file: whole, or what it was."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from ostools.ground.errors import InputError, in_words


def replaced(path: Path, write: Callable[[Path], object]) -> None:
    """Write under a temporary name, to the disk, then rename: after a signal or on a full disk what was there is still there.

    Raises `InputError` where the disk does not take it.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(temporary)
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        os.replace(temporary, path)
    except (OSError, RuntimeError) as error:  # torch's writer raises RuntimeError on a full disk
        temporary.unlink(missing_ok=True)
        raise InputError(
            f"could not write {str(path)!r} ({in_words(error)}): what was there before is still there"
        ) from None
