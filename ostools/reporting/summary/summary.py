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
    missing = _missing(measured)
    if not lines and measured.empty and measured.left_out:
        missing = ["Nothing could be measured. The reasons stand below."]
    elif not lines and not missing:
        missing = ["What was asked for has no headline of its own. Its findings stand in its section."]
    lead = f"overview-{lines[0].section}" if lines else ""
    charts = sorted(overview(measured), key=lambda figure: figure.name != lead)
    part = Part(strip=fields if lines else (), headlines=lines, findings=missing, overview=charts)
    return Section("findings", "Findings", "Findings", "", [part])


def _missing(measured: Measurements) -> list[str]:
    """Sections whose headline is not there because something was refused, with the first reason."""
    sentences = []
    for name in measured.provenance.parameters.get("sections", ()):
        reasons = [omission.reason for omission in measured.left_out if omission.section == name]
        section = SECTIONS[name]
        if reasons and section.verdict is not None and not any(section.headlines(measured)):
            more = f" ({len(reasons) - 1} more below)" if len(reasons) > 1 else ""
            sentences.append(f"There is no finding on {section.nav.lower()}. The reason: {reasons[0]}{more}.")
    return sentences


def verdicts(measured: Measurements) -> list[StripField]:
    """A field for each question, in the report's order; what was left for another time stands with its command."""
    tried = {*measured.provenance.parameters.get("sections", ())} - {
        omission.section for omission in measured.left_out if "--section" in omission.reason
    }
    fields = [section.verdict(measured) for section in SECTIONS.values() if section.verdict is not None]
    return [
        replace(field, rule=f"{field.rule} `ostools report --section {field.section}` tests it")
        if field.state == UNTESTED and field.section not in tried
        else field
        for field in fields
    ]


def headlines(measured: Measurements) -> list[Headline]:
    """A headline for each question whose data exist, in the report's order; the first that found something leads."""
    builders = dict.fromkeys(section.headlines for section in SECTIONS.values())
    lines = [line for builder in builders for line in builder(measured) if line is not None]
    found = [field.section for field in verdicts(measured) if field.state == FOUND]
    lead = next((line for line in lines if line.section in found), None)
    return sorted(lines, key=lambda line: line is not lead)
