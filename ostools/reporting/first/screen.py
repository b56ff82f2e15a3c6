"""The report's first section: verdicts, headlines, three small charts; and what is missing of them, with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ostools.reporting.first.glance import glance
from ostools.reporting.first.headlines import headlines
from ostools.reporting.first.verdicts import verdicts
from ostools.reporting.page.section import Finding, Part, Section
from ostools.reporting.sections.measurements import Measurements

NEEDED = {
    "Collapse": ("collapse", "precision"),
    "Position": ("position",),
    "Sensitivity": ("sensitivity",),
    "Bounds": ("sensitivity",),
    "Forms": ("sensitivity",),
    "Evaluation": ("evaluate",),
    "Mitigations": ("mitigations",),
}
"""The sections that each headline is made of, in the order in which their reasons matter."""


def findings_section(found: Measurements, present: Sequence[str]) -> Section:
    """The first screen; each verdict and headline leads to its section where that is there."""
    said = [replace(one, section=one.section if one.section in present else "") for one in headlines(found)]
    strip = [replace(one, section=one.section if one.section in present else "") for one in verdicts(found)]
    nothing = not said and found.empty and found.left_out
    missing = ["Nothing could be measured. The reasons stand below."] if nothing else _missing(found, said)
    if not said and not missing:
        missing = ["What was asked for has no headline of its own. Its findings stand in its section."]
    part = Part(strip=strip if said else (), first=said, findings=missing, small=glance(found))
    return Section("findings", "Findings", "Findings", "", [part])


def _missing(found: Measurements, said: Sequence[Finding]) -> list[str]:
    """The headlines that were asked for and are not there, as something was refused that they need; with the first reason."""
    titles, asked = {one.link for one in said}, found.provenance.parameters.get("sections", ())
    lines = []
    for title, needed in NEEDED.items():
        reasons = [one.reason for name in needed for one in found.left_out if one.section == name]
        if reasons and title not in titles and set(needed) & set(asked):
            more = f" ({len(reasons) - 1} more below)" if len(reasons) > 1 else ""
            lines.append(f"There is no finding on {title.lower()}. The reason: {reasons[0]}{more}.")
    return lines
