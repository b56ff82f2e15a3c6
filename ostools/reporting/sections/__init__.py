"""From results to the sections of the report.

A section function takes the `Measurements` and returns a `Section`, or None where its data are absent.
It is made of blocks: a result, its chart, and what is said of it.
"""

from __future__ import annotations

from collections.abc import Callable

from ostools.reporting.page.section import Section as Section
from ostools.reporting.sections.answers import evaluation_section, failure_stage_section, mitigations_section
from ostools.reporting.sections.collapse import collapse_section, precision_section
from ostools.reporting.sections.measurements import Measurements
from ostools.reporting.sections.sensitivity import (
    attention_section,
    layers_section,
    position_section,
    sensitivity_section,
)

SECTIONS: dict[str, Callable[[Measurements], Section | None]] = {
    "collapse": collapse_section,
    "precision": precision_section,
    "position": position_section,
    "sensitivity": sensitivity_section,
    "layers": layers_section,
    "attention": attention_section,
    "evaluate": evaluation_section,
    "failure-stage": failure_stage_section,
    "mitigations": mitigations_section,
}
"""The sections of measurements, in the order of the report."""
