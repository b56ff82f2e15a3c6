"""The one builder of pages: a result, its chart, the sentences on it, and its tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ostools.ground.errors import InputError, in_words
from ostools.reporting.charts import finished
from ostools.reporting.page.page import Figure
from ostools.reporting.page.section import More, Part, Table, frame_table
from ostools.results import Result
from ostools.results.table_head import TableHead


def block(
    result: Result,
    name: str,
    caption: str,
    sentences: Sequence[str],
    *,
    aloud: str = "",
    chart: Callable[[Any], Any] = finished,
    has_words: bool = False,
    **part_fields: Any,
) -> Part:
    """A result's chart and the sentences on it; `part_fields`: titles, tables, notes of the part.

    aloud: words after the caption for those who do not see the chart; without them the first sentence.
    has_words: the sentences say what the chart says under its title. A chart that cannot be drawn is
    replaced by the reason.
    """
    words = aloud or (sentences[0] if sentences else "")
    try:
        figure = Figure(name, chart(result), caption, f"{caption}. {words}", has_words=has_words)
    except (InputError, LookupError, ValueError) as error:
        notes = [f"{caption} could not be drawn: {in_words(error)}", *part_fields.pop("notes", ())]
        return Part(findings=sentences, notes=notes, **part_fields)
    return Part(figure=figure, findings=sentences, **part_fields)


def tables_of(result: Result, *heads: TableHead) -> list[Table]:
    """The tables of a result as a terminal has them, with all of their rows; `heads`: others than those of its class."""
    default = TableHead("summary" if hasattr(result, "summary") else "frame")
    tables = (head.of(result) for head in heads or result.tables or (default,))
    return [frame_table(title, frame) for title, frame in tables if len(frame)]


def in_detail(result: Result, *heads: TableHead, findings: Sequence[str] = (), **fields: Any) -> More:
    """The tables of a result, folded away, after these sentences."""
    return More("In detail", findings=findings, tables=tables_of(result, *heads), **fields)
