"""From results to the sections of the report: a small module for each, one template for all.

A section function takes the `Measurements` and returns a `Section`, or None where its data are absent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ostools.models.families import EMBEDDED
from ostools.reporting.look.theme import display_token
from ostools.reporting.page.page import render
from ostools.reporting.page.section import Section as Section
from ostools.reporting.sections.about import again_section, findings_section, reading_section, run_section
from ostools.reporting.sections.attention import attention_section
from ostools.reporting.sections.behaviour import behaviour_section
from ostools.reporting.sections.collapse import collapse_section
from ostools.reporting.sections.fate import fate_section
from ostools.reporting.sections.measurements import Measurements
from ostools.reporting.sections.mitigations import mitigations_section
from ostools.reporting.sections.precision import precision_section
from ostools.reporting.sections.sensitivity import layers_section, sensitivity_section
from ostools.reporting.sections.theory import theory_section

SECTIONS: dict[str, Callable[[Measurements], Section | None]] = {
    "collapse": collapse_section,
    "precision": precision_section,
    "sensitivity": sensitivity_section,
    "layers": layers_section,
    "attention": attention_section,
    "behaviour": behaviour_section,
    "fate": fate_section,
    "mitigations": mitigations_section,
    "theory": theory_section,
}
"""The sections of measurements, in the order of the report."""


def sections_of(found: Measurements, command: str) -> list[Section]:
    """Every section whose data exist, and those that every report has."""
    built = [section for section in (build(found) for build in SECTIONS.values()) if section is not None]
    first = findings_section(found, [section.name for section in built])
    return [first, run_section(found), *built, reading_section(), again_section(command, found.prompt)]


def render_report(found: Measurements, command: str) -> str:
    """The whole page."""
    model: Any = found.provenance.model
    name = str(model["name"])
    sections = sections_of(found, command)
    values = {
        "title": f"Over-squashing and collapse in {'the embedded model' if name == EMBEDDED else display_token(name, 80)}",
        "lead": (
            "Representational collapse and over-squashing, measured on this model and held against “Transformers need "
            f"glasses!” (arXiv 2406.04267). {model['architecture']}, {model['n_parameters']:,} parameters, {model['dtype']}."
        ),
        "sections": sections,
    }
    views = [part.view for section in sections for part in section.parts if part.view is not None]
    return render("report.html.j2", values, [view.script for view in views])
