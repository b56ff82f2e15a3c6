"""The one builder of pages: a page is a list of sections, a section a list of parts (a result, its
chart, its sentences).

`block` makes the part of a result. `render_sections` renders the sections by one template, whatever
the page is of: a report, a sweep, a reproduction.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from ostools.ground import InputError, in_words, number
from ostools.reporting.page.page import Figure, Script, render
from ostools.reporting.style.theme import display_token
from ostools.results import Chart, Frame, Result

DETECTED, NOT_DETECTED, OPEN, UNTESTED = "found", "not found", "not decided", "not tested"
OVER_SQUASHING, NO_SHAPE = "U: over-squashing", "none"
"""The words of a field of the strip; or that of a shape."""
ShownResult = TypeVar("ShownResult", bound=Result)


@dataclass(frozen=True)
class Table:
    """A table; every cell is text, and is escaped by the template."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def frame_table(caption: str, frame: Frame) -> Table:
    """A data frame as a table: numbers of three digits, tokens made visible, without columns that
    hold nothing.
    """
    names = [name for name in frame.columns if frame[name].notna().any()]
    cells = frame[names].itertuples(index=False, name=None)
    rows = [[_cell(name, value) for name, value in zip(names, row, strict=True)] for row in cells]
    return Table(caption, list(map(str, names)), rows)


def _cell(name: str, value: Any) -> str:
    if pd.isna(value):
        return "–"
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    words = number(value) if isinstance(value, float) else str(value)
    return display_token(words) if name == "token" else words


@dataclass(frozen=True)
class Headline:
    """A `verdict` in a sentence, `text` with its figures, and the section with more (`link`)."""

    verdict: str
    text: str
    section: str
    link: str


@dataclass(frozen=True)
class StripField:
    """One field of the strip: a question by `name`, its answer in a word, the rule, and the
    section.

    good_if_found: that something is found is good news.
    """

    name: str
    state: str
    rule: str
    section: str
    good_if_found: bool = False

    @property
    def tone(self) -> str:
        """The colour class of the word; the word itself says it too."""
        if self.good_if_found:
            return "no" if self.state == DETECTED else "open"
        bad, good = (DETECTED, OVER_SQUASHING), (NOT_DETECTED, NO_SHAPE)
        return "yes" if self.state in bad else "no" if self.state in good else "open"


@dataclass(frozen=True)
class ScriptView:
    """An interactive view that a script draws into `element`; `label` names it aloud."""

    element: str
    label: str
    script: Script


@dataclass(frozen=True)
class Part:
    """A piece of a section, rendered in this order; what is empty is absent.

    more: parts that are folded away under their titles. leads: the words under which its first two
    findings stand on the first screen; empty: they do not.
    """

    title: str = ""
    quote: str = ""
    strip: Sequence[StripField] = ()
    headlines: Sequence[Headline] = ()
    overview: Sequence[Figure] = ()
    figure: Figure | None = None
    findings: Sequence[str] = ()
    terms: Sequence[tuple[str, str]] = ()
    tables: Sequence[Table] = ()
    items: Sequence[str] = ()
    code: str = ""
    view: ScriptView | None = None
    notes: Sequence[str] = ()
    more: "Sequence[Part]" = ()
    leads: str = ""


@dataclass(frozen=True)
class Section:
    """A section: `name` is its anchor, `nav` its navigation words, `lead` says what it shows."""

    name: str
    title: str
    nav: str
    lead: str
    parts: Sequence[Part]

    @property
    def headlines(self) -> list[Headline]:
        """The first finding of each part that leads, and the second beside it."""
        return [
            Headline(part.findings[0], " ".join(part.findings[1:2]), self.name, part.leads)
            for part in self.parts
            if part.leads and part.findings
        ]


def block(
    result: ShownResult,
    name: str,
    caption: str,
    sentences: Sequence[str] | None = None,
    *,
    chart: Callable[[ShownResult], Chart] | None = None,
    in_detail: bool = True,
    title: str = "",
    quote: str = "",
    leads: str = "",
    notes: Sequence[str] = (),
    tables: Sequence[Table] = (),
    more: Sequence[Part] = (),
) -> Part:
    """A result's chart, its findings (or these sentences), and its tables folded away
    (`in_detail`).

    A chart that cannot be drawn is replaced by the reason.
    """
    sentences = result.findings() if sentences is None else sentences
    detail = [Part("In detail", tables=tables_of(result))] if in_detail else []
    figure = None
    try:
        chart_drawn = result.plot() if chart is None else chart(result)
        # For who hears the page: the finding and its numbers.
        words = " ".join(sentences[:2]) or f"{len(result.frame)} rows"
        figure = Figure(name, chart_drawn, caption, f"{caption}. {words}", " ".join(sentences))
    except (InputError, LookupError, ValueError) as error:
        notes = [f"{caption} could not be drawn: {reason_of(error)}", *notes]
    return Part(
        title,
        quote,
        figure=figure,
        findings=sentences,
        tables=tables,
        notes=notes,
        more=[*more, *detail],
        leads=leads,
    )


def reason_of(error: Exception) -> str:
    """An error of ours as it is written, any other with its type."""
    return str(error) if isinstance(error, InputError) else in_words(error)


def tables_of(result: Result) -> list[Table]:
    """The tables of a result as a terminal has them, with all of their rows."""
    return [frame_table(title, frame) for title, frame in result.shown_tables()]


def render_sections(title: str, lead: str, sections: Sequence[Section]) -> str:
    """The page of these sections, with a navigation that leads to each."""
    views = [part.view for section in sections for part in section.parts if part.view is not None]
    values = {"title": title, "lead": lead, "sections": sections}
    return render("report.html.j2", values, [view.script for view in views])
