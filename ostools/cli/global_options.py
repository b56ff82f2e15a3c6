"""Options that mean the same in every command: output, place of the model, memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ostools.ground.errors import InputError


@dataclass
class GlobalOptions:
    """Options of the running command; the defaults are those of a command without options."""

    quiet: bool = False
    json: bool = False
    out: Path | None = None
    size: str | float | None = None
    device: str | None = None
    load_dtype: str | None = None
    max_memory: int | None = None
    dry_run: bool = False

    @property
    def of_a_loaded_model(self) -> list[str]:
        """The options of commands that load a model that were given."""
        names = ("device", "load_dtype", "dry_run")
        return [f"--{name.replace('_', '-')}" for name in names if getattr(self, name)]


GLOBALS = GlobalOptions()
"""Options of this process, which runs one command."""


def set_globals(values: Mapping[str, object]) -> None:
    """Read the global options of a command line; those it does not have keep their defaults."""
    readers: dict[str, Callable[[Any], object]] = {
        "out": Path,
        "max_memory": parse_bytes,
        "size": parse_size,
    }
    for name, default in vars(GlobalOptions()).items():
        value = values.get(name)
        if value is not None and name in readers:
            value = readers[name](value)
        setattr(GLOBALS, name, default if value is None else value)


def on_one_line(text: object) -> str:
    """Text as a terminal may have it: no character breaks the line, drives the terminal or turns
    the direction."""
    words = (character if character.isprintable() else " " for character in str(text))
    return " ".join("".join(words).split())


_BYTES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_BYTES |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}


def parse_bytes(text: str) -> int:
    """`4GiB`, `500 MB` or a number of bytes. Raises `InputError` for others."""
    match = re.fullmatch(r"\s*(\d*\.?\d+)\s*([a-z]*)\s*", text.lower(), re.ASCII)
    amount = float(match[1]) * _BYTES.get(match[2], 0) if match else 0.0
    if not 0 < amount < 2**62:
        raise InputError(f"--max-memory {text!r}: expected a size such as 4GiB, 500MB or a number")
    return int(amount)


def parse_size(text: str) -> str | float:
    """`column`, `page`, `slide` or a number of inches. Raises `InputError` for others."""
    from ostools.reporting.style.notebook import inches

    size = float(text) if re.fullmatch(r"\d+(\.\d+)?", text, re.ASCII) else text
    inches(size)
    return size
