"""The charts of the results: each a specification of one of the five forms in
`ostools.reporting.forms`.

A chart takes a result and returns an Altair object that carries its own data and look:
`.save("figure.pdf")`, or the last line of a notebook cell. A result's `chart` method imports the
function that draws it, when it is called.
"""

from typing import Any

import altair as alt

from ostools.reporting.style import notebook, theme
from ostools.results import Result


def finished(
    result: Result, size: str | float | int | None = None, title: bool = True
) -> alt.TopLevelMixin:
    """The result's chart; in a paper's `size`, without its title where `title` is False
    (`style.notebook`).

    Raises `InputError` for an unknown size, before anything is drawn, and as that chart does.
    """
    inches = None if size is None else notebook.inches(size)
    chart: Any = result.chart()
    if (
        mitigation := result.provenance.mitigation
    ) is not None and "mitigation" not in result.frame:
        # One that all of it was measured under.
        notes = [f"Under the mitigation {theme.visible(mitigation)}.", *chart.title.subtitle]
        chart.title = alt.TitleParams(chart.title.text, subtitle=notes)
    if not title:
        chart.title = alt.Undefined
    return chart if inches is None else notebook.sized(chart, inches)
