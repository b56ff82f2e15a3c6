"""The charts of the results: each a specification of one of the five forms in `ostools.reporting.forms`.

A chart takes a result and returns an Altair object that carries its own data and look: `.save("figure.pdf")`, or the last
line of a notebook cell. A result's class names the function that draws it: `class Bounds(Result, chart="tokens:bounds_chart")`.
This is the one door through which `ostools.results` reaches all that shows a result. A chart is imported when it is drawn.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import altair as alt

from ostools.ground.errors import InputError
from ostools.ground.records import records
from ostools.results import Result


def chart_of(result: Result, size: str | float | int | None = None, title: bool = True) -> alt.TopLevelMixin:
    """The chart of a result, by its class; in a paper's `size`, without its title if so asked (`style.paper`).

    Raises `InputError` for a class without a chart, for an unknown size, and as that chart does.
    """
    from ostools.reporting.style import paper

    if size is not None:
        paper.inches(size)  # refused before anything is drawn
    if not result.chart:
        raise InputError(
            f"expected a result whose class names its chart, found {type(result).__name__}: write `class "
            f"{type(result).__name__}(Result, chart=...)`, or give the class a `plot` of its own"
        )
    module, _, function = result.chart.partition(":")
    chart = _named_under(getattr(import_module(f"{__name__}.{module}"), function)(result), result)
    return chart if size is None and title else paper.sized(chart, size, title)


def _named_under(chart: Any, result: Result) -> Any:
    """The chart, whose title names the one mitigation that all of it was measured under, if there is one."""
    from ostools.reporting.style import theme

    if (mitigation := result.provenance.mitigation) is None or "mitigation" in result.frame:
        return chart
    title = chart.title.copy() if isinstance(chart.title, alt.TitleParams) else alt.TitleParams(chart.title)
    subtitle = [] if title.subtitle is alt.Undefined else title.subtitle
    title.subtitle = [
        f"Under the mitigation {theme.visible(mitigation)}.",
        *([subtitle] if isinstance(subtitle, str) else subtitle),
    ]
    chart.title = title
    return chart


def findings_of(result: Result) -> list[str]:
    """Sentences that the numbers of a result say (`Result.findings`); then how it differs from the paper's, of a figure."""
    sentences: list[str] = []
    for target in result.sentences:
        module, _, function = target.partition(":")
        sentences += getattr(import_module(f"ostools.reporting.{module}"), function)(result)
    return [*sentences, *getattr(result, "deviations", ())]


def import_results() -> None:
    """Import every module of ostools that defines a class of results."""
    for module in ("measure", "experiments", "sweep", *(target.partition(":")[0] for target in records())):
        import_module(f"ostools.{module}")


def result_bundle(result: Result) -> Any:
    """What a notebook shows of a result (`style.notebook`)."""
    from ostools.reporting.style import notebook

    return notebook.result_bundle(result)


def chart_page(chart: alt.TopLevelMixin, title: str) -> str:
    """One chart as an HTML page of its own (`page.page`)."""
    from ostools.reporting.page import page

    return page.chart_page(chart, title)


def attention_view(attention: Any, against: Any = None) -> Any:
    """The heads of one attention, or of two, to click through (`heads_view`)."""
    from ostools.reporting.charts import heads_view

    return heads_view.attention_view(attention, against)
