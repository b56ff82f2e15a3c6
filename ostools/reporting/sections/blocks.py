"""A block of a page: a result, its chart, and the sentences and tables that go with it."""

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
    told: bool = False,
    **beside: Any,
) -> Part:
    """Show a result by its chart, then the sentences; `beside`: titles, tables, notes of the part.

    aloud: what is said to those who do not see the chart, after the caption; the first sentence where
    it is empty. told: whether the sentences say what the chart says under its title. A chart that
    cannot be drawn is replaced by the reason.
    """
    words = aloud or (sentences[0] if sentences else "")
    try:
        figure = Figure(name, chart(result), caption, f"{caption}. {words}", told=told)
    except (InputError, LookupError, ValueError) as error:
        notes = [f"{caption} could not be drawn: {in_words(error)}", *beside.pop("notes", ())]
        return Part(findings=sentences, notes=notes, **beside)
    return Part(figure=figure, findings=sentences, **beside)
