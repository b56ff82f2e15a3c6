"""The pieces of a page, as data; one template renders all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from ostools.reporting.page.page import Figure, Script, render
from ostools.reporting.style.theme import visible

FOUND, NOT_FOUND, OPEN, UNTESTED = "found", "not found", "not decided", "not tested"
HOLD, NO_SIZE, FAIL = "hold", "hold, of no use as a size", "FAIL"
"""The words of a field of the strip; the last three are of certified bounds."""


@dataclass(frozen=True)
class Table:
    """A table; every cell is text, and is escaped by the template."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def table_from(caption: str, records: Iterable[Any], columns: Mapping[str, str | Callable[[Any], object]]) -> Table:
    """Make a table of records; `columns`: by its header, what each column shows of a record."""
    rows = [[str(show(record) if callable(show) else record[show]) for show in columns.values()] for record in records]
    return Table(caption, list(columns), rows)


def share(value: Any) -> str:
    """A share in per cent; a dash where there is none."""
    return "–" if value != value else f"{value:.0%}"


def interval(low: str, high: str) -> Callable[[Mapping[Any, Any]], str]:
    """A cell from these two columns of a record."""
    return lambda row: "–" if row[low] != row[low] else f"{row[low]:.0%} to {row[high]:.0%}"


@dataclass(frozen=True)
class Headline:
    """A `verdict` in a sentence, `text` with its figures, and the section with more, under `link`."""

    verdict: str
    text: str
    section: str
    link: str


@dataclass(frozen=True)
class StripField:
    """One field of the strip: a question by `name`, its answer in a word, the rule, and the section.

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
            return "no" if self.state == FOUND else "open"
        return {FOUND: "yes", FAIL: "yes", NOT_FOUND: "no", HOLD: "no"}.get(self.state, "open")


@dataclass(frozen=True)
class ScriptView:
    """An interactive view that a script draws into the element of that id; `label` names it aloud."""

    element: str
    label: str
    script: Script


@dataclass(frozen=True)
class More:
    """Content that is folded away under a line that opens it."""

    title: str
    findings: Sequence[str] = ()
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()
    code: str = ""


@dataclass(frozen=True)
class Part:
    """A piece of a section, rendered in this order; what is empty is absent."""

    title: str = ""
    quote: str = ""
    columns: Sequence[Part] = ()
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
    more: Sequence[More] = ()


@dataclass(frozen=True)
class Section:
    """A section: `name` is its anchor, `nav` its navigation words, `lead` says what it shows."""

    name: str
    title: str
    nav: str
    lead: str
    parts: Sequence[Part]


def render_sections(title: str, lead: str, sections: Sequence[Section]) -> str:
    """The page of these sections, with a navigation that leads to each."""
    parts = [column for section in sections for part in section.parts for column in (part, *part.columns)]
    views = [part.view for part in parts if part.view is not None]
    values = {"title": title, "lead": lead, "sections": sections}
    return render("report.html.j2", values, [view.script for view in views])


def spelled(value: Any) -> Any:
    """A section or piece of one, the control and direction characters of its texts spelled out.

    For names and errors that were read from files. Charts and scripts stay as they are.
    """
    if isinstance(value, str):
        return "\n".join(map(visible, value.split("\n")))
    if isinstance(value, list | tuple):
        return type(value)(map(spelled, value))
    if is_dataclass(value) and not isinstance(value, type | Script | ScriptView):
        return replace(value, **{field.name: spelled(getattr(value, field.name)) for field in fields(value)})
    return value
