"""From results to the sections of the report: a small module for each.

A section function takes the `Measurements` and returns a `Section`, or None where its data are absent.
"""

from __future__ import annotations

from collections.abc import Callable

from ostools.reporting.page.section import Section as Section
from ostools.reporting.sections.attention import attention_section
from ostools.reporting.sections.behaviour import behaviour_section
from ostools.reporting.sections.collapse import collapse_section
from ostools.reporting.sections.fate import fate_section
from ostools.reporting.sections.measurements import Measurements
from ostools.reporting.sections.mitigations import mitigations_section
from ostools.reporting.sections.precision import precision_section
from ostools.reporting.sections.sensitivity import layers_section, position_section, sensitivity_section

SECTIONS: dict[str, Callable[[Measurements], Section | None]] = {
    "collapse": collapse_section,
    "precision": precision_section,
    "position": position_section,
    "sensitivity": sensitivity_section,
    "layers": layers_section,
    "attention": attention_section,
    "behaviour": behaviour_section,
    "fate": fate_section,
    "mitigations": mitigations_section,
}
"""The sections of measurements, in the order of the report."""
