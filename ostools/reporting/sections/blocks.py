"""The one builder of pages: a result, its chart, and the sentences and tables on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ostools.ground.errors import InputError, in_words
from ostools.reporting.charts import chart_of
from ostools.reporting.page.page import Figure
from ostools.reporting.page.section import Part
from ostools.results import Result


def block(
    result: Result,
    name: str,
    caption: str,
    sentences: Sequence[str],
    *,
    aloud: str = "",
    chart: Callable[[Any], Any] = chart_of,
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
