"""What the commands show: tables, or JSON, on stdout; notes and progress with the time left on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ostools.cli.global_options import GLOBALS, on_one_line
from ostools.ground.progress import outermost

if TYPE_CHECKING:
    from rich.console import Console

SHOWN = 16
"""How many lengths of a curve a terminal shows; a file gets all."""


@contextmanager
def progress(description: str) -> Iterator[Callable[[int, int], None]]:
    """A bar with the time left, on stderr and only on a terminal; gone when the block ends."""
    from rich import progress as parts
    from rich.console import Console

    console = Console(stderr=True)
    columns = (
        parts.SpinnerColumn(),
        parts.TextColumn("{task.description}", markup=False),
        parts.BarColumn(),
        parts.TextColumn("{task.percentage:>3.0f}%"),
        parts.TimeElapsedColumn(),
        parts.TextColumn("left"),
        parts.TimeRemainingColumn(),
    )
    with outermost(), parts.Progress(*columns, console=console, transient=True, disable=not shows_bar()) as bar:
        task = bar.add_task(description, total=None)

        def report(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield report


def shows_bar() -> bool:
    """Whether a bar is seen: on a terminal, where it is wanted."""
    from rich.console import Console

    return not GLOBALS.quiet and Console(stderr=True).is_terminal


def note(text: str) -> None:
    """A line on stderr about what is going to happen; results have stdout to themselves."""
    if not GLOBALS.quiet:
        sys.stderr.write(f"{on_one_line(text)}\n")


def print_json(value: Any) -> None:
    """One JSON value on stdout, in ASCII; NaN and infinity are refused (ValueError), as JSON has none."""
    sys.stdout.write(json.dumps(value, indent=1, allow_nan=False) + "\n")


def _stdout() -> Console:
    """The console for results. In a pipe lines are as wide as they are, so that nothing is cut."""
    from rich.console import Console

    class Results(Console):
        """Where the reader has left, who called decides; rich would end the process with 1."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    terminal = sys.stdout.isatty()
    return Results(highlight=False, soft_wrap=not terminal, width=None if terminal else 200)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], left: int = 1) -> None:
    """A table on stdout, whose first `left` columns are words and the rest numbers; no cell is read as markup or drives the
    terminal."""
    from rich.table import Table
    from rich.text import Text

    shown = Table(title=Text(_shown(title)), title_justify="left", box=None, pad_edge=False, header_style="bold")
    for index, name in enumerate(columns):
        shown.add_column(Text(_shown(name)), justify="left" if index < left else "right", no_wrap=index >= left)
    for row in rows:
        shown.add_row(*(Text(_cell(value)) for value in row))
    _stdout().print(shown)


def some_of(lengths: Iterable[int], noun: str = "lengths", most: int = SHOWN) -> tuple[list[int], str]:
    """At most `most` of the lengths, evenly spread, the first and the last among them; and how many they are, for a title."""
    known = sorted(set(lengths))
    shown = sorted({known[round(i * (len(known) - 1) / (most - 1))] for i in range(most)})
    return shown, f", {len(shown)} of {len(known)} {noun}" if len(shown) < len(known) else ""


def _cell(value: object) -> str:
    """A value as a table shows it: numbers to four significant digits, a missing one as a dash."""
    if isinstance(value, float):
        return f"{value:.4g}" if value == value else "-"
    return "-" if value is None or str(value) == "<NA>" else _shown(str(value))


def print_text(lines: Iterable[str]) -> None:
    """Sentences, wrapped at the terminal's width."""
    from rich.text import Text

    console = _stdout()
    for line in lines:
        console.print(Text(_shown(line)))


def _shown(text: str) -> str:
    """The text without what drives a terminal; where it has one, its spaces stay as they are."""
    return "".join(character if character.isprintable() else " " for character in text)


def tell_written(path: Path) -> None:
    """Say what was written, unless nothing is to be said."""
    if GLOBALS.json:
        print_json({"written": str(path)})
    elif not GLOBALS.quiet:
        print_text([f"wrote {path}"])
