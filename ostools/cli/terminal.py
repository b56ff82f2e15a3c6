"""Output of the commands: results and JSON on stdout, notes and a bar with the time left on stderr.

A result is shown as the heads of one or two of its tables, then the sentences that its numbers
say. Files get everything.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ostools.cli.global_options import GLOBALS, on_one_line
from ostools.ground.progress import outermost

if TYPE_CHECKING:
    from rich.console import Console

_LENGTHS = 16
"""Lengths of a curve that a terminal shows."""
_ROWS = 48
"""Rows of a table that a terminal shows."""
_NARROWEST = 16
"""Characters to which a column of words may be wrapped."""
_GREATEST = 10
"""Rows of a table that is ordered by size."""


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

        def report(steps: int, total: int) -> None:
            bar.update(task, completed=steps, total=total)

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


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], text_columns: int = 1) -> None:
    """Print a table whose first `text_columns` columns hold words and the others numbers.

    No cell is read as markup or drives the terminal.
    """
    from rich.table import Table
    from rich.text import Text

    heading = Text(_printable(title))
    table = Table(title=heading, title_justify="left", box=None, pad_edge=False, header_style="bold")
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


@dataclass(frozen=True)
class View:
    """A table of a result as a terminal shows it.

    table: an attribute of the result, or a method without arguments.
    columns: names with blanks between them, of which those that the table lacks are left out;
        none: all.
    across: the columns whose values stand side by side.
    greatest: the column by whose size the rows are ordered.
    groups: one row a group, with the number of its rows and the means of `columns`.
    """

    table: str = "frame"
    columns: str = ""
    across: str = ""
    greatest: str = ""
    groups: str = ""


_VIEWS: dict[str, tuple[View, ...]] = {
    "Sensitivity": (
        View(
            "frame",
            "layer position token operator_norm frobenius_norm frobenius_lower frobenius_upper",
            across="linearisation",
        ),
    ),
    "Bounds": (
        View("beliefs", "variant words"),
        View(columns="last position token value", across="variant kind linearisation norm"),
    ),
    "Profile": (
        View("top", "position token origin value share share_without_sink over_frozen"),
        View("summary", "linearisation sink_share last_share text_share effective_tokens over_frozen_median"),
        View("shapes", "linearisation kept verdict start middle end start_contrast end_contrast"),
    ),
    "Spectra": (View("depth"),),
    "Attention": (View(columns="layer head token position weight", greatest="weight"),),
    "AttentionDifference": (
        View(
            columns="layer head token first_position second_position first second difference",
            greatest="difference",
        ),
    ),
    "AttentionVariation": (View("over_heads"),),
    "Collapse": (View(columns="pair seed layer length mean pair_noise machine_line", across="dtype"),),
    "Retrieval": (View(columns="found log_probability sensitivity_mean sensitivity_others", groups="position"),),
    "Figure2": (View(columns="correct", groups="panel task"),),
    "Figure3": (View(columns="correct absolute_error", groups="task mode"),),
    "Figure4": (View(columns="task mode output answers right", greatest="answers"),),
    "Figure5": (View(columns="panel pair dtype length mean head_minimum head_maximum"),),
    "Counting": (View(columns="dtype length key answer absolute_error distance pair_noise"),),
    "Decodability": (View(columns="dtype site layer test control accuracy low high chance selectivity"),),
    "ProbeIntervention": (
        View(
            columns="dtype site layer direction cosine random_low random_high arrived predicted "
            "intervention followed rank"
        ),
    ),
    "FailureStage": (
        View(columns="mitigation dtype length verdict prompts read unread undecodable indistinguishable status"),
    ),
    "Ablation": (View("top", "quantity target value ablated effect predicted_effect"),),
    "Faithfulness": (View("correlations"), View("areas")),
    "Study": (
        View("verdicts", "mitigation answers log_probability collapse sensitivity"),
        View("effects", "mitigation quantity dtype kind scale effect low high lengths inactive"),
    ),
    "ChainOfThought": (View("summary"),),
    "Corpus": (View("summary"), View("shapes")),
}
"""By the class of a result. A class without a row shows its `summary`, or its `frame`."""

_FINDINGS = "ostools.reporting.findings"
_CHARTS = "ostools.reporting.charts"
_SENTENCES: dict[str, tuple[str, ...]] = {
    "Sensitivity": (f"{_FINDINGS}.sensitivity:sensitivity_findings",),
    "Attention": (f"{_CHARTS}.attention:attention_findings",),
    "AttentionDifference": (f"{_CHARTS}.attention:difference_findings",),
    "Evaluation": (
        f"{_FINDINGS}.answers:evaluation_findings",
        f"{_FINDINGS}.answers:unread_texts",
    ),
    "Counting": (f"{_FINDINGS}.answers:counting_findings",),
    "Decodability": (f"{_FINDINGS}.probes:probe_findings",),
    "ProbeIntervention": (f"{_FINDINGS}.probes:intervention_findings",),
    "FailureStage": (f"{_FINDINGS}.probes:failure_stage_findings",),
    "Ablation": (f"{_FINDINGS}.effects:beliefs", f"{_FINDINGS}.effects:ablation_findings"),
    "Faithfulness": (f"{_FINDINGS}.effects:faithfulness_findings",),
    "Retrieval": (f"{_CHARTS}.positions:retrieval_notes",),
    "Figure8": (f"{_CHARTS}.experiments.decay:figure_8_notes",),
    "Figure9": (f"{_CHARTS}.experiments.decay:figure_9_notes",),
}
"""Functions from a result to sentences, by the class of the result."""


def show(result: Any) -> None:
    """Print the tables of a result and what they say; of several prompts their mean as well."""
    if hasattr(result, "over_position") and len(result) > 1:
        for number, prompt_result in enumerate(result, start=1):
            print_text([f"prompt {number} of {len(result)}"])
            show(prompt_result)
            print_text([""])
        title = f"Mean over {len(result)} prompts: shares of parts of the prompt, 1 where all are equal"
        _print_frame(title, result.over_position())
        return
    name = type(result).__name__
    summary = View("summary" if hasattr(result, "summary") else "frame")
    for view in _VIEWS.get(name, (summary,)):
        _show_view(result, view)
    print_text(findings_of(result))


def findings_of(result: Any, *, beside_a_file: bool = False) -> list[str]:
    """Sentences that a result says; beside a file those alone that a picture needs."""
    from ostools.cli.signature import imported

    name = type(result).__name__
    if name == "Collapse":
        return _collapse_findings(result, beside_a_file)
    if beside_a_file:
        return []
    sentences = [line for target in _SENTENCES.get(name, ()) for line in imported(target)(result)]
    if name == "Study":
        sentences += list(result.verdicts["sentence"])
    if name in ("Figure8", "Figure9"):
        sentences = [*_laws(result), *sentences]
    return [*sentences, *getattr(result, "deviations", ())]


def _laws(result: Any) -> list[str]:
    """The law that each curve of Figures 8 and 9 follows."""
    from ostools.reporting.charts.experiments.decay import law_words

    keys = ("reading", "quantity") if type(result).__name__ == "Figure8" else ("quantity",)
    fits = result.fits.to_dict("records")
    return [f"{' '.join(str(fit[key]) for key in keys)}: {law_words(fit)}" for fit in fits]


def _collapse_findings(result: Any, beside_a_file: bool) -> list[str]:
    from ostools.reporting.findings import collapse as findings

    if beside_a_file:
        return findings.verdict_lines(result, _reading(result))
    if result.reading is not None:
        return findings.reading_findings(result, result.reading)
    return findings.collapse_findings(result, result.provenance.model.get("trained_lengths"))


def _reading(result: Any) -> Any:
    """The distance that a collapse shows."""
    from ostools.measure.collapse.verdicts import Reading

    return result.reading or Reading.with_defaults("y", None, "l2")


def _show_view(result: Any, view: View) -> None:
    name = type(result).__name__
    words = re.sub(r"(?<=[a-z])(?=[A-Z0-9])", " ", name).capitalize()
    title = words if view.table == "frame" else f"{words}, {view.table.replace('_', ' ')}"
    table: Any = getattr(result, view.table)
    table = table() if callable(table) else table
    if not len(table):
        return
    if name == "Collapse":
        reading = _reading(result)
        by_layer = table["layer"].nunique() > 1
        place = reading.words.replace("v^(L)", "v^(l)") if by_layer else reading.words
        title = f"{place}, {table['task'].iloc[0]}"
        table = reading.of(result.measured(), every_layer=by_layer)
    if "length" in table.columns:
        table, title = _some_lengths(table, title)
    if view.groups:
        table = _grouped(table, view)
    if view.greatest:
        order = table[view.greatest].abs().sort_values(ascending=False, kind="stable").index
        table, title = table.reindex(order).head(_GREATEST), f"{title}, by {view.greatest}"
    if view.across:
        table = _side_by_side(table, view)
    elif view.columns and not view.groups:
        table = table[_present(view.columns, table)]
    _print_frame(title, table)
    print_text([""])


def _some_lengths(table: Any, title: str) -> tuple[Any, str]:
    """Rows of at most `_LENGTHS` lengths, evenly spread, the first and the last among them."""
    lengths = sorted(set(table["length"]))
    last, most = len(lengths) - 1, _LENGTHS - 1
    sample = {lengths[round(index * last / most)] for index in range(_LENGTHS)}
    if len(sample) == len(lengths):
        return table, title
    return table[table["length"].isin(sample)], f"{title}, {len(sample)} of {len(lengths)} lengths"


def _present(names: str, table: Any) -> list[str]:
    return [name for name in names.split() if name in table.columns]


def _grouped(table: Any, view: View) -> Any:
    """One row a group: how many rows it has, and the means; of true and false the share."""
    means, groups = _present(view.columns, table), view.groups.split()
    numbers = table.assign(**{name: table[name].astype("Float64") for name in means})
    grouped = numbers.groupby(groups, sort=False)
    return grouped.agg(rows=(groups[0], "size"), **{name: (name, "mean") for name in means}).reset_index()


def _side_by_side(table: Any, view: View) -> Any:
    """The table with a column for each number and each value of `across`."""
    names = _present(view.columns, table)
    keys = [name for name in names if table[name].dtype.kind != "f"]
    numbers: list[str] = []
    for name in names:
        # Exact norms have no interval: both of its ends repeat the norm.
        repeats = numbers and table[name].equals(table[numbers[-1]])
        if name not in keys and table[name].notna().any() and not repeats:
            numbers.append(name)
    # A key that is the same in all rows says nothing.
    index = [name for name in keys if table[name].nunique() > 1] or keys[-1:]
    wide = table.pivot_table(
        index=index, columns=view.across.split(), values=numbers, aggfunc="first", sort=False, dropna=False
    )
    wide.columns = [" ".join(map(str, (*name[1:], name[0]))) for name in wide]
    return wide.dropna(how="all").reset_index()


def _print_frame(title: str, table: Any) -> None:
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


def _fitting(names: Sequence[str], rows: Sequence[Sequence[Any]], is_number: Sequence[bool]) -> int:
    """Number of columns that fit side by side, at least one; a column of words may be wrapped."""
    width, room = 0, _stdout().width
    for index, name in enumerate(names):
        longest = max([len(str(name)), *(len(_cell(row[index])) for row in rows)])
        width += 2 + (longest if is_number[index] else min(longest, _NARROWEST))
        if width > room and index:
            return index
    return len(names)


def _token(name: str, cell: Any, display_token: Callable[[str], str]) -> Any:
    """A token as a short visible word; the row of a logit's parts that has none is of the biases."""
    if name not in ("token", "answer") or cell is None:
        return cell
    return "biases" if name == "token" and str(cell) == "" else display_token(str(cell))
