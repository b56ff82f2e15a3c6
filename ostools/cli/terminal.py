"""Output of the commands: results and JSON on stdout, notes and a bar with the time left on stderr.

A result is shown as the heads of one or two of its tables, then the sentences that its numbers
say. Files get everything.

Options that mean the same in every command: output, place of the model, memory.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ostools.ground import InputError, Progress, outermost, watched


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
    return " ".join(_printable(str(text)).split())


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


if TYPE_CHECKING:
    from rich.console import Console

    from ostools.results import Frame, Result

_ROWS = 48
"""Rows of a table that a terminal shows."""
_NARROWEST = 16
"""Characters to which a column of words may be wrapped."""


@contextmanager
def progress(description: str) -> Iterator[Progress]:
    """How far the work is, on stderr and only where that is wanted: a bar with the time left where
    it is seen, else lines.
    """
    display = watched(description, lambda line: note(f"{description}: {line}"))
    with outermost(), nullcontext(False) if GLOBALS.quiet else display as report:
        yield report


def note(text: str) -> None:
    """A line on stderr about what is going to happen; results have stdout to themselves."""
    if not GLOBALS.quiet:
        sys.stderr.write(f"{on_one_line(text)}\n")


def print_json(value: object) -> None:
    """One JSON value on stdout, in ASCII; NaN and infinity are refused (ValueError), as JSON has
    none.
    """
    sys.stdout.write(json.dumps(value, indent=1, allow_nan=False) + "\n")


def _stdout() -> Console:
    """The console for results. In a pipe lines are as wide as they are, so that nothing is cut."""
    from rich.console import Console

    terminal = sys.stdout.isatty()
    return Console(highlight=False, soft_wrap=not terminal, width=None if terminal else 200)


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    numbers: Collection[str] = (),
) -> None:
    """Print a table; `numbers` are the columns that hold numbers, the others hold words.

    No cell is read as markup or drives the terminal.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(_printable(title)),
        title_justify="left",
        box=None,
        pad_edge=False,
        header_style="bold",
    )
    for name in columns:
        justify = "right" if name in numbers else "left"
        table.add_column(Text(_printable(name)), justify=justify, no_wrap=name in numbers)
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row))
    _stdout().print(table)


def _cell(value: object) -> str:
    """A value as a table shows it: four significant digits, a dash where there is none."""
    if isinstance(value, float):
        return f"{value:.4g}" if value == value else "-"
    return "-" if value is None or str(value) == "<NA>" else _printable(str(value))


def print_text(lines: Iterable[str]) -> None:
    """Sentences, wrapped at the terminal's width."""
    from rich.text import Text

    console = _stdout()
    for line in lines:
        console.print(Text(_printable(line)))


def _printable(text: str) -> str:
    """The text with a blank for each character that drives a terminal or breaks the line."""
    return "".join(character if character.isprintable() else " " for character in text)


def tell_written(path: Path) -> None:
    """Say what was written, unless nothing is to be said."""
    if GLOBALS.json:
        print_json({"written": str(path)})
    elif not GLOBALS.quiet:
        print_text([f"wrote {path}"])


def show(result: Result) -> None:
    """Print the tables of a result, of several prompts their mean, and what they say."""
    from ostools.measure.prompts import PromptResults

    if isinstance(result, PromptResults):
        title = f"Mean over {len(result)} prompts: shares of parts, 1 where all are equal"
        _print_frame(title, result.over_position())
    for title, table in result.shown_tables():
        _print_frame(title, table)
    print_text(result.findings())


def _print_frame(title: str, table: Frame) -> None:
    """Print the head of a table, as many of its columns as fit side by side, without those that
    hold nothing; a column of words may be wrapped.
    """
    from ostools.reporting.style.theme import display_token

    head = table.dropna(axis="columns", how="all").head(_ROWS)
    for name in {"token", "answer"} & {*head.columns}:
        # A part of a logit that is no token's has the token "".
        texts = head[name].replace("", None) if name == "token" else head[name]
        head = head.assign(**{name: texts.map(lambda text: display_token(str(text)), "ignore")})
    numbers = [name for name in head.columns if head[name].dtype.kind in "iuf"]
    longest = {name: max(len(str(name)), *map(len, map(_cell, head[name]))) for name in head}
    widths = [2 + (n if name in numbers else min(n, _NARROWEST)) for name, n in longest.items()]
    room = _stdout().width
    count = max(1, sum(width <= room for width in accumulate(widths)))
    if len(head) < len(table) or count < len(widths):
        lengths = f"{len(head)} of {len(table)} rows, {count} of {len(widths)} columns"
        title += f", {lengths} (--out FILE has all)"
    head = head.iloc[:, :count]
    print_table(title, [*map(str, head)], head.itertuples(index=False, name=None), numbers)
    print_text([""])


def give_tables(tables: Mapping[str, Sequence[Mapping[str, object]]]) -> None:
    """Show the tables, or give their rows as JSON: those of one by themselves, several by their
    titles.
    """
    if GLOBALS.json:
        by_title = {title.lower(): rows for title, rows in tables.items()}
        print_json(by_title if len(by_title) > 1 else next(iter(by_title.values())))
        return
    for title, rows in tables.items():
        names = [*rows[0]] if rows else []
        print_table(title, names, [[*row.values()] for row in rows])
