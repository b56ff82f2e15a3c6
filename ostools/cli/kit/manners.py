"""How a command behaves: with progress and notes or without, in tables for people or in JSON for programs; where its model
lies, and within which memory and time."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, get_type_hints

import typer

from ostools.cli.kit.options import Out
from ostools.ground.errors import InputError

Quiet = Annotated[bool, typer.Option("--quiet", help="No progress, no notes: results and refusals only.")]
Json = Annotated[bool, typer.Option("--json", help="The whole result as JSON on stdout, its provenance with it.")]
MaxMemory = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="What the work may take beside the model, such as 4GiB; else what is free."),
]
MaxTime = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", help="End what its first steps show to take longer: 90s, 30min, 6h. Default: no limit."
    ),
]
DeviceMap = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="For a model larger than the memory: 'auto' (by what is free) or 'disk'. Default: all on the device.",
    ),
]
Base = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Of a model that is an adapter (LoRA): its base, where it is not where it says."),
]

DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Say the memory that the work is forecast to take; load and measure nothing."),
]


Size = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Width of a picture for a paper: column (3.3 in), page (6.8 in), or inches."),
]


@dataclass
class Manners:
    """What the running command was asked for."""

    quiet: bool = False
    json: bool = False
    max_memory: int | None = None
    max_seconds: float | None = None
    device_map: str | None = None
    base: str | None = None
    dry_run: bool = False
    size: str | float | None = None

    @property
    def of_model(self) -> dict[str, Any]:
        """The options that only a command has which runs a model here, with what was given; None where nothing was."""
        return {"--base": self.base, "--device-map": self.device_map, "--dry-run": self.dry_run or None}


MANNERS = Manners()
"""Of this process: a command line runs one command."""


def on_one_line(text: object) -> str:
    """The text as a terminal may have it: no character that breaks the line, drives the terminal or turns the direction."""
    words = "".join(character if character.isprintable() else " " for character in str(text)).split()
    return " ".join(words)


def with_manners(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with the options `--quiet` and `--json`, which every command has, with `--size`, which those have that may
    write a picture, and with `--base`, `--device-map`, `--dry-run` and the limits `--max-memory` and `--max-time`, which those
    have that run a model."""
    hints = get_type_hints(command, include_extras=True)
    own = [given.replace(annotation=hints[name]) for name, given in inspect.signature(command).parameters.items()]
    extra: list[tuple[str, Any, Any]] = [("quiet", Quiet, False), ("json", Json, False)]
    if "device" in hints:
        extra = [
            ("base", Base, None),
            ("device_map", DeviceMap, None),
            ("max_memory", MaxMemory, None),
            ("max_time", MaxTime, None),
            ("dry_run", DryRun, False),
            *extra,
        ]
    if hints.get("out") == Out:
        extra = [("size", Size, None), *extra]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, kind, default in extra
    ]

    @functools.wraps(command)
    def spoken(*, quiet: bool = False, json: bool = False, **options: Any) -> Any:
        MANNERS.quiet, MANNERS.json = quiet, json
        MANNERS.max_memory = parse_bytes(options.pop("max_memory", None))
        MANNERS.max_seconds = parse_seconds(options.pop("max_time", None))
        MANNERS.base = options.pop("base", None)
        MANNERS.device_map = options.pop("device_map", None)
        MANNERS.size = parse_size(options.pop("size", None))
        if "device" in hints:  # `ostools run` has a --dry-run of its own, which lists cells
            MANNERS.dry_run = options.pop("dry_run", False)
        return command(**options)

    spoken.__signature__ = inspect.Signature(own + added)  # pyright: ignore[reportAttributeAccessIssue]
    spoken.__annotations__ = {parameter.name: parameter.annotation for parameter in own + added}
    return spoken


_BYTES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_SECONDS = {"": 1, "s": 1, "min": 60, "m": 60, "h": 3600, "d": 86400}


def parse_bytes(text: str | None) -> int | None:
    """`4GiB`, `500 MB` or a number of bytes; None stays None. Raises `InputError` for anything else."""
    if text is None:
        return None
    size = _with_unit(text, _BYTES)
    if not 1 <= size < 2**62:
        raise InputError(f"--max-memory {text!r}: expected a size such as 4GiB, 500MB or a number of bytes")
    return int(size)


def parse_seconds(text: str | None) -> float | None:
    """`90s`, `30min`, `6h` or a number of seconds; None stays None. Raises `InputError` for anything else."""
    if text is None:
        return None
    seconds = _with_unit(text, _SECONDS)
    if not 0 < seconds < float("inf"):
        raise InputError(f"--max-time {text!r}: expected a time such as 90s, 30min, 6h or a number of seconds")
    return seconds


def parse_size(text: str | None) -> str | float | None:
    """`column`, `page` or a number of inches; None stays None. Raises `InputError` for anything else."""
    if text is None:
        return None
    from ostools.reporting.look.paper import inches

    try:
        size: str | float = float(text)
    except ValueError:
        size = text
    inches(size)
    return size


def _with_unit(text: str, units: Mapping[str, int]) -> float:
    """NaN for what is no number with one of the units."""
    number = text.strip().rstrip("".join(units).upper() + "".join(units) + " ").strip()
    unit = text.strip()[len(number) :].strip().lower()
    try:
        return float(number) * units[unit]
    except (ValueError, KeyError):
        return float("nan")
