"""Output of the commands: results and JSON on stdout, notes and a bar with the time left on stderr.

A result is shown as the heads of one or two of its tables, then the sentences that its numbers
say. Files get everything.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from ostools.cli.global_options import GLOBALS, on_one_line
from ostools.ground.progress import LogLines, Progress, bar, is_looked_at, outermost

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
    display: AbstractContextManager[Progress] = nullcontext(False)
    if not GLOBALS.quiet:
        lines = LogLines(lambda line: note(f"{description}: {line}"))
        display = bar(description) if is_looked_at() else nullcontext(lines)
    with outermost(), display as report:
        yield report


def shows_bar() -> bool:
    """Whether a bar is seen: on a terminal, where it is wanted."""
    return not GLOBALS.quiet and is_looked_at()


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
    title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], text_columns: int = 1
) -> None:
    """Print a table whose first `text_columns` columns hold words and the others numbers.

    No cell is read as markup or drives the terminal.
    """
    from rich.table import Table
    from rich.text import Text

    heading = Text(_printable(title))
    table = Table(
        title=heading, title_justify="left", box=None, pad_edge=False, header_style="bold"
    )
    for index, name in enumerate(columns):
        is_number = index >= text_columns
        justify = "right" if is_number else "left"
        table.add_column(Text(_printable(name)), justify=justify, no_wrap=is_number)
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


# ---- results


def show(result: Result) -> None:
    """Print the tables of a result and what they say; of several prompts their mean as well."""
    from ostools.measure.prompts import PromptResults
    from ostools.results.table_head import TableHead

    if isinstance(result, PromptResults) and len(result) > 1:
        for number, prompt_result in enumerate(result, start=1):
            print_text([f"prompt {number} of {len(result)}"])
            show(prompt_result)
            print_text([""])
        title = (
            f"Mean over {len(result)} prompts: shares of parts of the prompt, 1 where all are equal"
        )
        _print_frame(title, result.over_position())
        return
    for head in result.tables or (TableHead("summary" if hasattr(result, "summary") else "frame"),):
        title, table = head.of(result)
        if len(table):
            _print_frame(title, table)
            print_text([""])
    print_text(result.findings())


def _print_frame(title: str, table: Frame) -> None:
    """Print the head of a table, as many of its columns as fit, without those that hold nothing."""
    from ostools.reporting.style.theme import display_token

    names = [name for name in table.columns if table[name].notna().any()]
    head = table[names].head(_ROWS)
    rows = [
        [_token(name, cell, display_token) for name, cell in zip(names, cells, strict=True)]
        for cells in head.itertuples(index=False, name=None)
    ]
    is_number = [head[name].dtype.kind in "iuf" for name in names]
    count = _fitting(names, rows, is_number)
    if len(rows) < len(table) or count < len(names):
        lengths = f"{len(rows)} of {len(table)} rows, {count} of {len(names)} columns"
        title += f", {lengths} (--out FILE has all)"
    text_columns = is_number.index(True) if any(is_number) else len(names)
    shown_rows = [row[:count] for row in rows]
    print_table(title, list(map(str, names[:count])), shown_rows, text_columns=max(text_columns, 1))


def _fitting(
    names: Sequence[str], rows: Sequence[Sequence[object]], is_number: Sequence[bool]
) -> int:
    """Number of columns that fit side by side, at least one; a column of words may be wrapped."""
    width, room = 0, _stdout().width
    for index, name in enumerate(names):
        longest = max([len(str(name)), *(len(_cell(row[index])) for row in rows)])
        width += 2 + (longest if is_number[index] else min(longest, _NARROWEST))
        if width > room and index:
            return index
    return len(names)


def _token(name: str, cell: object, display_token: Callable[[str], str]) -> object:
    """A token as a short visible word; the row of a logit's parts that is no token's has none."""
    if name not in ("token", "answer") or cell is None:
        return cell
    return None if name == "token" and str(cell) == "" else display_token(str(cell))
