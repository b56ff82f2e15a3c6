"""Charts of the results and the self-contained HTML report; each imported at its first use, for a chart needs no report."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ostools.reporting import charts as charts
    from ostools.reporting.report.report import report as report
    from ostools.reporting.reproduction.recipe import Recipe as Recipe
    from ostools.reporting.reproduction.recipe import read_recipe as read_recipe
    from ostools.reporting.reproduction.reproduce import reproduce as reproduce

_MODULES = {
    "report": "ostools.reporting.report.report",
    "Recipe": "ostools.reporting.reproduction.recipe",
    "read_recipe": "ostools.reporting.reproduction.recipe",
    "reproduce": "ostools.reporting.reproduction.reproduce",
}

__all__ = ["Recipe", "charts", "read_recipe", "report", "reproduce"]


def __getattr__(name: str) -> Any:
    if name == "charts":
        return import_module("ostools.reporting.charts")
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
