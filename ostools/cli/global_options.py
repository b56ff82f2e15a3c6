"""Options that mean the same in every command: output, place of the model, memory and time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

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
    device_map: Literal["auto", "disk"] | None = None
    max_memory: int | None = None
    max_time: float | None = None
    dry_run: bool = False

    @property
    def of_a_loaded_model(self) -> list[str]:
        """The options of commands that load a model that were given."""
        names = ("device", "load_dtype", "device_map", "dry_run")
        return [f"--{name.replace('_', '-')}" for name in names if getattr(self, name)]


GLOBALS = GlobalOptions()
"""Options of this process, which runs one command."""


def set_globals(values: Mapping[str, Any]) -> None:
    """Read the global options of a command line; those it does not have keep their defaults."""
    vars(GLOBALS).update(vars(GlobalOptions()))
    readers = {
        "out": Path,
        "max_memory": parse_bytes,
        "max_time": parse_seconds,
        "size": parse_size,
    }
    for name in (field.name for field in fields(GlobalOptions)):
        if values.get(name) is not None:
            setattr(GLOBALS, name, readers[name](values[name]) if name in readers else values[name])


def on_one_line(text: object) -> str:
    """Text as a terminal may have it: no character breaks the line, drives the terminal or turns
    the direction."""
    words = (character if character.isprintable() else " " for character in str(text))
    return " ".join("".join(words).split())


def _number_and_unit(text: str) -> tuple[str, str]:
    """A number without an exponent and its unit, which may be empty. Raises `ValueError` for
    anything else.
    """
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+(?:[eE][0-9]{1,2})?)\s*([A-Za-z]*)\s*", text)
    if match is None:  # pydantic leaves out what follows, and pandas a comma: 4,5 would be 4, or 45
        raise ValueError
    return f"{Decimal(match[1]):f}", match[2]


def parse_bytes(text: str) -> int:
    """`4GiB`, `500 MB` or a number of bytes. Raises `InputError` for others."""
    from pydantic import ByteSize, TypeAdapter

    try:
        size = int(TypeAdapter(ByteSize).validate_python("".join(_number_and_unit(text))))
    except (ValueError, OverflowError):
        size = 0
    if not 1 <= size < 2**62:
        raise InputError(
            f"--max-memory {text!r}: expected a size such as 4GiB, 500MB or a number of bytes"
        )
    return size


def parse_seconds(text: str) -> float:
    """`90s`, `30min`, `6h` or a number of seconds. Raises `InputError` for others."""
    import pandas as pd

    try:
        number, unit = _number_and_unit(text)
        seconds = pd.Timedelta(number + unit).total_seconds() if unit else float(number)
    except (ValueError, OverflowError):
        seconds = float("nan")
    if not 0 < seconds < float("inf"):
        raise InputError(
            f"--max-time {text!r}: expected a time such as 90s, 30min, 6h or a number of seconds"
        )
    return seconds


def parse_size(text: str) -> str | float:
    """`column`, `page`, `slide` or a number of inches. Raises `InputError` for others."""
    from ostools.reporting.style.paper import inches

    try:
        size: str | float = float(text)
    except ValueError:
        size = text
    inches(size)
    return size
