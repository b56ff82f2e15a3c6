"""From measurements to the page: the first screen, a section for each measurement, and those that every report has."""

from __future__ import annotations

from typing import Any

from ostools.ground.words import title_of
from ostools.models.families import EMBEDDED
from ostools.reporting.first.screen import findings_section
from ostools.reporting.page.section import Section, render_sections
from ostools.reporting.sections import SECTIONS
from ostools.reporting.sections.about import again_section, reading_section, run_section
from ostools.reporting.sections.measurements import Measurements
from ostools.reporting.style import theme


def sections_of(found: Measurements, command: str) -> list[Section]:
    """Every section whose data exist, and those that every report has."""
    built = [section for section in (build(found) for build in SECTIONS.values()) if section is not None]
    first = findings_section(found, [section.name for section in built])
    return [first, run_section(found), *built, reading_section(), again_section(command, found.prompt)]


def render_report(found: Measurements, command: str) -> str:
    """The whole page."""
    model: Any = found.provenance.model
    called = "the embedded model" if model["name"] == EMBEDDED else theme.title(title_of(model))
    lead = (
        "Representational collapse and over-squashing, measured on this model and held against “Transformers need "
        f"glasses!” (arXiv 2406.04267). {model['architecture']}, {model['n_parameters']:,} parameters, {model['dtype']}."
    )
    return render_sections(f"Over-squashing and collapse in {called}", lead, sections_of(found, command))
