"""The charts of the results: each a specification of one of the five forms in `ostools.reporting.forms`.

A chart takes a result and returns an Altair object that carries its own data and look: `.save("figure.pdf")`, or the last
line of a notebook cell. `CHARTS` says by the name of a result's class which function draws it; a new result needs a row.
This is the one door through which `ostools.results` reaches all that shows a result. A chart is imported when it is drawn.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import altair as alt

from ostools.ground.errors import InputError
from ostools.results import Result

CHARTS: dict[str, str] = {
    "Ablation": "components:ablation_chart",
    "Attention": "attention:attention_chart",
    "AttentionDifference": "attention:attention_difference_chart",
    "AttentionVariation": "spectra:attention_variation_chart",
    "Evaluation": "answers:evaluation_chart",
    "ChainOfThought": "positions:chain_of_thought_chart",
    "Change": "tokens:change_chart",
    "Collapse": "collapse_parts:collapse_result_chart",
    "Comparison": "tokens:comparison_chart",
    "Attribution": "tokens:attribution_chart",
    "Corpus": "corpus:corpus_chart",
    "CorpusCollapse": "corpus:corpus_collapse_chart",
    "Counting": "answers:counting_chart",
    "Decodability": "components:probe_chart",
    "Faithfulness": "profile:faithfulness_chart",
    "FailureStage": "components:failure_stage_chart",
    "Figure2": "experiments.figures:figure_2_chart",
    "Figure3": "experiments.figures:figure_3_chart",
    "Figure4": "experiments.figures:figure_4_chart",
    "Figure5": "experiments.figure5:figure_5_chart",
    "Figure8": "experiments.decay:figure_8_chart",
    "Figure9": "experiments.decay:figure_9_chart",
    "HeadScores": "attention:heads_chart",
    "UntrainedBaselines": "tokens:baselines_chart",
    "Bounds": "tokens:bounds_chart",
    "PromptBounds": "corpus:several_chart",
    "PositionEffect": "positions:position_chart",
    "Profile": "profile:profile_chart",
    "ProbeIntervention": "components:intervention_chart",
    "Repeats": "experiments.decay:repeats_chart",
    "Reproduction": "experiments.figures:claims_chart",
    "Retrieval": "positions:retrieval_chart",
    "Sensitivities": "corpus:several_chart",
    "Sensitivity": "profile:sensitivity_result_chart",
    "Spectra": "spectra:spectra_chart",
    "Study": "experiments.study:study_chart",
    "WindowStudy": "experiments.study:windows_chart",
}
"""By class name: the module in this package and its function; a class derived from one is drawn as that one."""


def chart_of(result: Result, size: str | float | int | None = None, title: bool = True) -> alt.TopLevelMixin:
    """The chart of a result, by its class; in a paper's `size`, without its title if so asked (`style.paper`).

    Raises `InputError` for a class without a chart, for an unknown size, and as that chart does.
    """
    from ostools.reporting.style import paper

    if size is not None:
        paper.inches(size)  # refused before anything is drawn
    for kind in type(result).__mro__:
        if kind.__name__ in CHARTS and kind.__module__.startswith("ostools."):
            module, _, function = CHARTS[kind.__name__].partition(":")
            draw = getattr(import_module(f"{__name__}.{module}"), function)
            chart = _named_under(draw(result), result)
            return chart if size is None and title else paper.sized(chart, size, title)
    raise InputError(
        f"expected a result with a row in ostools.reporting.charts.CHARTS, found {type(result).__name__}: "
        "add its chart there, or give the class a `plot` of its own"
    )


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


def import_results() -> None:
    """Import every module of ostools that defines a class of results."""
    for floor in ("measure", "experiments", "runs"):
        import_module(f"ostools.{floor}")


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
