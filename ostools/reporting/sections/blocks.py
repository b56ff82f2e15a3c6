"""The one builder of what pages show: a result, its chart, the sentences on it, and its tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ostools.ground.errors import InputError, in_words
from ostools.reporting.charts import finished
from ostools.reporting.page.page import Figure
from ostools.reporting.page.section import Headline, More, Part, Table, frame_table
from ostools.results import Chart, Result
from ostools.results.table_head import TableHead


def block(
    result: Result,
    name: str,
    caption: str,
    sentences: Sequence[str] | None = None,
    *,
    chart: Callable[[Any], Chart] = finished,
    has_words: bool = False,
    in_detail: bool = True,
    **part_fields: Any,
) -> Part:
    """A result's chart, its findings, and its tables folded away (`in_detail`).

    `part_fields`: title, quote, tables, notes of the part.

    sentences: in place of the findings. has_words: the sentences say what the chart says under its title. A chart that cannot
    be drawn is replaced by the reason.
    """
    sentences = result.findings() if sentences is None else sentences
    more = [*part_fields.pop("more", ()), *([More("In detail", tables=tables_of(result))] if in_detail else [])]
    fields = {"findings": sentences, "more": more, **part_fields}
    try:
        words = f"{caption}. {' '.join(sentences[:2])}"  # for who hears the page: the finding and its numbers
        figure = Figure(name, chart(result), caption, words.strip(), has_words=has_words)
    except (InputError, LookupError, ValueError) as error:
        notes = [f"{caption} could not be drawn: {in_words(error)}", *fields.pop("notes", ())]
        return Part(notes=notes, **fields)
    return Part(figure=figure, **fields)


def tables_of(result: Result, *heads: TableHead) -> list[Table]:
    """The tables of a result as a terminal has them, with all of their rows; `heads`: others than those of its class."""
    default = TableHead("summary" if hasattr(result, "summary") else "frame")
    tables = (head.of(result) for head in heads or result.tables or (default,))
    return [frame_table(title, frame) for title, frame in tables if len(frame)]


def headline(result: Result, section: str, link: str) -> Headline:
    """A result's first finding, and the second beside it, for the first screen."""
    verdict, *figures = result.findings()
    return Headline(verdict, " ".join(figures[:1]), section, link)
