"""From measurements to a page: of one model, or of two side by side.

A page of two goes by question, the first model's section before the second's. Every section and
chart keeps its model's name and its own scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ostools.ground.words import title_of
from ostools.models.families import EMBEDDED
from ostools.reporting.page.section import Part, Section, render_sections
from ostools.reporting.report.summary import findings_section
from ostools.reporting.sections import SECTIONS
from ostools.reporting.sections.about import again_section, reading_section, run_section
from ostools.reporting.sections.records import Measurements
from ostools.reporting.style import theme

WITHOUT_VIEW = "The interactive view of heads stands in the report of one model: a page holds one such view."
_LEAD = (
    "Representational collapse and over-squashing, measured on {} and held against “Transformers need glasses!” "
    "(arXiv 2406.04267). {}"
)


def _sections(measured: Measurements) -> dict[str, Section]:
    """The sections whose data exist, by name."""
    sections = {name: record.section(measured) for name, record in SECTIONS.items()}
    return {name: section for name, section in sections.items() if section is not None}


def render_report(measured: Measurements, command: str) -> str:
    """The page of one model."""
    model: Any = measured.provenance.model
    title = "the embedded model" if model["name"] == EMBEDDED else theme.title(title_of(model))
    size = f"{model['architecture']}, {model['n_parameters']:,} parameters, {model['dtype']}."
    sections = _sections(measured)
    first = findings_section(measured, list(sections))
    last = reading_section(), again_section(command, measured.prompt)
    page = [first, run_section(measured), *sections.values(), *last]
    return render_sections(f"Over-squashing and collapse in {title}", _LEAD.format("this model", size), page)


def render_two(pair: tuple[Measurements, Measurements], command: str) -> str:
    """The page of two models."""
    names = [theme.title(title_of(measured.provenance.model), 60) for measured in pair]
    if names[0] == names[1]:
        names = [f"{names[0]} (the first)", f"{names[1]} (the second)"]
    sections = [_sections(measured) for measured in pair]
    runs = [_of_model(run_section(measured), place, names[place]) for place, measured in enumerate(pair)]
    summaries = [
        _anchored(findings_section(measured, list(present)).parts[0], place)
        for place, (measured, present) in enumerate(zip(pair, sections, strict=True))
    ]
    columns = [replace(part, title=name, overview=()) for part, name in zip(summaries, names, strict=True)]
    charts = [Part(overview=part.overview) for part in summaries]
    first = Section("findings", "Findings", "Findings", "", [Part(columns=columns), Part(columns=charts)])
    by_question = [
        _of_model(sections[place][name], place, names[place])
        for name in SECTIONS
        for place in range(2)
        if name in sections[place]
    ]
    page = [first, *runs, *by_question, reading_section(), again_section(command, pair[0].prompt)]
    note = (
        "Each number is of the model that its section names. The distances and norms of two models do not share a unit."
    )
    title = f"Over-squashing and collapse in {names[0]} and {names[1]}"
    return render_sections(title, _LEAD.format("two models", note), page)


def _of_model(section: Section, place: int, name: str) -> Section:
    """The section under the model's name, with anchors that no other model has."""
    parts = [
        _anchored(part, place) if part.view is None else Part(title=part.title, findings=[WITHOUT_VIEW])
        for part in section.parts
    ]
    title, nav = f"{section.title}: {name}", f"{section.nav}: {name}"
    return Section(f"{section.name}-{place + 1}", title, nav, section.lead, parts)


def _anchored(part: Part, place: int) -> Part:
    suffix = f"-{place + 1}"
    return replace(
        part,
        overview=[replace(figure, name=f"{figure.name}{suffix}") for figure in part.overview],
        figure=part.figure and replace(part.figure, name=f"{part.figure.name}{suffix}"),
        strip=_linked(part.strip, suffix),
        headlines=_linked(part.headlines, suffix),
    )


def _linked(lines: Sequence[Any], suffix: str) -> list[Any]:
    return [replace(line, section=f"{line.section}{suffix}" if line.section else "") for line in lines]
