"""The pieces of a page, as data; one template renders all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from ostools.ground.words import number
from ostools.reporting.page.page import Figure, Script, render
from ostools.reporting.style.theme import display_token, visible
from ostools.results import Frame

FOUND, NOT_FOUND, OPEN, UNTESTED = "found", "not found", "not decided", "not tested"
HOLD, NO_SIZE, FAIL = "hold", "hold, of no use as a size", "FAIL"
"""The words of a field of the strip; the last three are of certified bounds."""


@dataclass(frozen=True)
class Table:
    """A table; every cell is text, and is escaped by the template."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def frame_table(caption: str, frame: Frame) -> Table:
    """A data frame as a table: numbers of three digits, tokens made visible, without columns that hold nothing."""
    names = [name for name in frame.columns if frame[name].notna().any()]
    cells = frame[names].itertuples(index=False, name=None)
    rows = [[_cell(name, value) for name, value in zip(names, row, strict=True)] for row in cells]
    return Table(caption, list(map(str, names)), rows)


def _cell(name: str, value: Any) -> str:
    if pd.isna(value):
        return "–"
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, float):
        return number(value)
    return display_token(str(value)) if name == "token" else str(value)


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
