"""Charts of the results and the self-contained HTML report."""

from ostools.reporting import charts as charts
from ostools.reporting.report.report import report as report

__all__ = ["charts", "report"]
