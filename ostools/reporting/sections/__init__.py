"""The sections of the report, in its order: each is one record (`records.ReportSection`).

A block on the page is a result, its chart, and what is said of it.
"""

from ostools.reporting.sections.answers import EVALUATE, FAILURE_STAGE, MITIGATIONS
from ostools.reporting.sections.collapse import COLLAPSE, PRECISION
from ostools.reporting.sections.records import ReportSection
from ostools.reporting.sections.sensitivity import ATTENTION, LAYERS, POSITION, SENSITIVITY

SECTIONS: dict[str, ReportSection] = {
    section.name: section
    for section in (
        COLLAPSE,
        PRECISION,
        POSITION,
        SENSITIVITY,
        LAYERS,
        ATTENTION,
        EVALUATE,
        FAILURE_STAGE,
        MITIGATIONS,
    )
}
