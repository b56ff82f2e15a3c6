"""Charts of the results and the self-contained HTML report."""

from ostools.reporting import charts as charts
from ostools.reporting.report.report import report as report
from ostools.reporting.reproduction.recipe import Recipe as Recipe
from ostools.reporting.reproduction.recipe import read_recipe as read_recipe
from ostools.reporting.reproduction.reproduce import reproduce as reproduce

__all__ = ["Recipe", "charts", "read_recipe", "report", "reproduce"]
