"""The report's first lines: at most five findings, each one or two short sentences with the figures they rest on."""

from __future__ import annotations

from ostools.reporting.findings import sensitivity as findings
from ostools.reporting.findings.behaviour import answered
from ostools.reporting.findings.collapse import collapse_summary, precision_summary
from ostools.reporting.findings.precision import precision_findings
from ostools.reporting.findings.study import study_finding
from ostools.reporting.sections.measurements import Measurements


def summary(found: Measurements) -> list[tuple[str, str, str]]:
    """Title, text and section of each finding whose data exist."""
    said = [
        ("Collapse", collapse_summary(found.collapses), "collapse"),
        ("Precision", _precision(found), "precision"),
        ("Sensitivity", _sensitivity(found), "sensitivity"),
        ("Bounds", _bounds(found), "sensitivity"),
        ("Behaviour", _behaviour(found), "behaviour" if found.behaviours else "mitigations"),
    ]
    return [(title, " ".join(sentences), section) for title, sentences, section in said if sentences]


def _precision(found: Measurements) -> list[str]:
    casts = precision_summary(found.casts)
    return casts if found.precision is None else [*casts, *precision_findings(found.precision)]


def _sensitivity(found: Measurements) -> list[str]:
    """How unequal the tokens are, and the prediction with the best order."""
    if found.sensitivity is None:
        return []
    said = findings.sensitivity_summary(found.sensitivity)
    return said if found.comparison is None else [*said, *findings.prediction_summary(found.comparison)]


def _bounds(found: Measurements) -> list[str]:
    """The tightest certified bound, and where the loosest loses."""
    if found.comparison is None:
        return []
    said = findings.bounds_summary(found.comparison)
    return said if found.looseness is None else [*said, findings.looseness_finding(found.looseness)]


def _behaviour(found: Measurements) -> list[str]:
    said = [answered(result) for result in found.behaviours]
    return said if found.study is None else [*said, study_finding(found.study)]
