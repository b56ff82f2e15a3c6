"""The first section of a report: a strip of verdicts, headlines with their figures, small charts.

The first headline is the first, in the report's order, that found something. No headline is picked after looking: the
derivative is the first of the profile, and every prompt counts for collapse. What was not tested, or not decided, is said to
be so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ostools.reporting.page.section import FOUND, UNTESTED, Headline, Part, Section, StripField
from ostools.reporting.sections import SECTIONS
from ostools.reporting.sections.records import Measurements
from ostools.reporting.summary.overview import overview


def findings_section(measured: Measurements, present: Sequence[str]) -> Section:
    """The first section; each verdict and headline leads to its section, where that is `present`."""

    def linked(item: Any) -> Any:
        return item if item.section in present else replace(item, section="")

    lines: list[Headline] = [linked(line) for line in headlines(measured)]
    fields: list[StripField] = [linked(field) for field in verdicts(measured)]
    missing = _missing(measured, lines)
    if not lines and measured.empty and measured.left_out:
        missing = ["Nothing could be measured. The reasons stand below."]
    elif not lines and not missing:
        missing = ["What was asked for has no headline of its own. Its findings stand in its section."]
    lead = f"overview-{lines[0].section}" if lines else ""
    charts = sorted(overview(measured), key=lambda figure: figure.name != lead)
    part = Part(strip=fields if lines else (), headlines=lines, findings=missing, overview=charts)
    return Section("findings", "Findings", "Findings", "", [part])


def _missing(measured: Measurements, lines: Sequence[Headline]) -> list[str]:
    """Requested headlines that are not there because something was refused, with the first reason."""
    titles = {line.link for line in lines}
    requested = set(measured.provenance.parameters.get("sections", ()))
    sentences = []
    for title in dict.fromkeys(title for section in SECTIONS.values() for title in section.headlines):
        needed = [name for name, section in SECTIONS.items() if title in section.headlines]
        reasons = [omission.reason for name in needed for omission in measured.left_out if omission.section == name]
        if reasons and title not in titles and set(needed) & requested:
            more = f" ({len(reasons) - 1} more below)" if len(reasons) > 1 else ""
            sentences.append(f"There is no finding on {title.lower()}. The reason: {reasons[0]}{more}.")
    return sentences


def verdicts(measured: Measurements) -> list[StripField]:
    """A field for each question, in the report's order; what was left for another time stands with its command."""
    tried = {*measured.provenance.parameters.get("sections", ())} - {
        omission.section for omission in measured.left_out if "--section" in omission.reason
    }
    fields = []
    for name, section in SECTIONS.items():
        if (question := section.verdict) is not None:
            state, rule = question.state(measured), question.rule
            if state == UNTESTED and name not in tried:
                rule = f"{rule} `ostools report --section {name}` tests it"
            fields.append(StripField(question.name, state, rule, name, question.good_if_found))
    return fields


def headlines(measured: Measurements) -> list[Headline]:
    """A headline for each question whose data exist, in the report's order; the first that found something leads."""
    builders = dict.fromkeys(builder for section in SECTIONS.values() for builder in section.headlines.values())
    lines = [line for builder in builders for line in builder(measured) if line is not None]
    lead = next((line for line in lines if _has_found(measured, line)), None)
    return sorted(lines, key=lambda line: line is not lead)


def _has_found(measured: Measurements, line: Headline) -> bool:
    """Whether the verdict of the headline's section is that it found something."""
    section = SECTIONS.get(line.section)
    return section is not None and section.verdict is not None and section.verdict.state(measured) == FOUND
