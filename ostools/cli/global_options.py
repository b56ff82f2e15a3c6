"""Options that mean the same in every command: output, place of the model, memory and time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
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
    device_map: str | None = None
    max_memory: int | None = None
    max_seconds: float | None = None
    dry_run: bool = False

    @property
    def of_a_loaded_model(self) -> dict[str, Any]:
        """Values of the options of commands that load a model; None where they were left out."""
        return {
            "--device": self.device,
            "--load-dtype": self.load_dtype,
            "--device-map": self.device_map,
            "--dry-run": self.dry_run or None,
        }


GLOBALS = GlobalOptions()
"""Options of this process, which runs one command."""


def set_globals(values: Mapping[str, Any]) -> None:
    """Read the global options of a command line; those it does not have keep their defaults."""
    vars(GLOBALS).update(vars(GlobalOptions()))
    for field in fields(GlobalOptions):
        if values.get(field.name) is not None:
            setattr(GLOBALS, field.name, values[field.name])
    out = values.get("out")
    GLOBALS.out = None if out is None else Path(out)
    GLOBALS.max_memory = parse_bytes(values.get("max_memory"))
    GLOBALS.max_seconds = parse_seconds(values.get("max_time"))
    GLOBALS.size = parse_size(values.get("size"))


def on_one_line(text: object) -> str:
    """Text as a terminal may have it: no character breaks the line, drives the terminal or turns
    the direction."""
    words = (character if character.isprintable() else " " for character in str(text))
    return " ".join("".join(words).split())


_BYTES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9}
_BYTES |= {"kib": 2**10, "mib": 2**20, "gib": 2**30}
_SECONDS = {"": 1, "s": 1, "min": 60, "m": 60, "h": 3600, "d": 86400}


def parse_bytes(text: str | None) -> int | None:
    """`4GiB`, `500 MB` or a number of bytes; None stays None. Raises `InputError` for others."""
    if text is None:
        return None
    size = _with_unit(text, _BYTES)
    if not 1 <= size < 2**62:
        raise InputError(f"--max-memory {text!r}: expected a size such as 4GiB, 500MB or a number of bytes")
    return int(size)


def parse_seconds(text: str | None) -> float | None:
    """`90s`, `30min`, `6h` or a number of seconds; None stays None. Raises `InputError` for others."""
    if text is None:
        return None
    seconds = _with_unit(text, _SECONDS)
    if not 0 < seconds < float("inf"):
        raise InputError(f"--max-time {text!r}: expected a time such as 90s, 30min, 6h or a number of seconds")
    return seconds


def parse_size(text: str | None) -> str | float | None:
    """`column`, `page`, `slide` or a number of inches; None stays None. Raises `InputError` for others."""
    if text is None:
        return None
    from ostools.reporting.style.paper import inches

    try:
        size: str | float = float(text)
    except ValueError:
        size = text
    inches(size)
    return size


def _with_unit(text: str, units: Mapping[str, int]) -> float:
    """The number times its unit; NaN for what is no number with one of the units."""
    letters = "".join(units)
    number = text.strip().rstrip(f"{letters.upper()}{letters} ").strip()
    unit = text.strip()[len(number) :].strip().lower()
    try:
        return float(number) * units[unit]
    except (ValueError, KeyError):
        return float("nan")
