"""The charts of the results, as Altair objects that carry their own data and look; a room a subject.

`answers`: behaviour, retrieval, mitigations, windows, ablations, heads. `attention`: heat maps, and heads to click through.
`collapse`: curves, precisions, repeats, counting. `figures`: the paper's. `sensitivity`: over
tokens, layers, paths and spectra. Each chart takes a result and returns `.save("figure.pdf")`, or the last line of a notebook
cell.

`CHARTS` says which result is drawn by which: `Result.plot` looks there, and a new result needs a row. This is the one door
through which `ostools.results` reaches all that shows a result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import altair as alt

from ostools import experiments, measure, runs
from ostools.ground.errors import InputError
from ostools.measure.passes.precisions import Precision
from ostools.reporting.charts.answers.ablation import ablation_chart
from ostools.reporting.charts.answers.behaviour import behaviour_chart
from ostools.reporting.charts.answers.fate import decodable_chart, fate_chart, readout_chart
from ostools.reporting.charts.answers.heads import heads_chart
from ostools.reporting.charts.answers.retrieval import retrieval_chart
from ostools.reporting.charts.answers.study import study_chart
from ostools.reporting.charts.answers.windows import windows_chart
from ostools.reporting.charts.attention.heat import attention_chart, attention_difference_chart
from ostools.reporting.charts.attention.variation import attention_variation_chart
from ostools.reporting.charts.attention.view import attention_view as attention_view
from ostools.reporting.charts.collapse.corpus import corpus_collapse_chart
from ostools.reporting.charts.collapse.counting import counting_chart
from ostools.reporting.charts.collapse.curves import collapse_chart
from ostools.reporting.charts.collapse.layers import collapse_layers_chart
from ostools.reporting.charts.collapse.precision import precision_chart
from ostools.reporting.charts.collapse.repeats import repeats_chart
from ostools.reporting.charts.figures.claims import claims_chart
from ostools.reporting.charts.figures.figure2 import figure_2_chart
from ostools.reporting.charts.figures.figure3 import figure_3_chart
from ostools.reporting.charts.figures.figure4 import figure_4_chart
from ostools.reporting.charts.figures.figure5 import figure_5_chart
from ostools.reporting.charts.figures.figure8_and_9 import figure_8_chart, figure_9_chart
from ostools.reporting.charts.sensitivity.change import change_chart
from ostools.reporting.charts.sensitivity.contributions import contributions_chart
from ostools.reporting.charts.sensitivity.corpus import corpus_chart, several_chart
from ostools.reporting.charts.sensitivity.faithfulness import faithfulness_chart
from ostools.reporting.charts.sensitivity.nulls import nulls_chart
from ostools.reporting.charts.sensitivity.over_tokens import comparison_chart, path_sum_chart, sensitivity_chart
from ostools.reporting.charts.sensitivity.position import position_chart
from ostools.reporting.charts.sensitivity.reasoning import chain_of_thought_chart
from ostools.reporting.charts.sensitivity.shape_and_layers import layers_chart, profile_chart
from ostools.reporting.charts.sensitivity.spectra import spectra_chart
from ostools.reporting.look import paper, theme
from ostools.reporting.look.notebook import result_bundle as result_bundle
from ostools.reporting.page.page import chart_page as chart_page
from ostools.results import Result


def _sensitivity(result: measure.Sensitivity) -> alt.TopLevelMixin:
    """Token by token; layer by layer where several were measured."""
    return layers_chart(result) if len(set(result.frame["layer"])) > 1 else sensitivity_chart(result)


def _collapse(result: measure.Collapse) -> alt.TopLevelMixin:
    """The curves dtype by dtype, of what the result is to be read by; layer by layer where several were measured; with parts
    stored in few bits, or more than four dtypes, the precisions side by side."""
    reading, layers = result.reading, set(result.frame["layer"])
    if len(layers) > 1:
        return collapse_layers_chart(result, **({} if reading is None else {"per": reading.per, "norm": reading.norm}))
    if reading is not None:
        return collapse_chart(result, (reading.site,), per=reading.per, norm=reading.norm)
    names = set(result.frame["dtype"])
    many = len(names) > 4 or any(Precision.of_name(name).part is not None for name in names)
    return precision_chart(result) if many else collapse_chart(result)


CHARTS: dict[type[Result], Callable[[Any], alt.TopLevelMixin]] = {
    measure.Attention: attention_chart,
    measure.AttentionDifference: attention_difference_chart,
    measure.AttentionVariation: attention_variation_chart,
    measure.Behaviour: behaviour_chart,
    measure.Change: change_chart,
    measure.Collapse: _collapse,
    measure.Comparison: comparison_chart,
    measure.Contributions: contributions_chart,
    measure.Counting: counting_chart,
    measure.Decodable: decodable_chart,
    measure.Faithfulness: faithfulness_chart,
    measure.Fate: fate_chart,
    measure.HeadScores: heads_chart,
    measure.Nulls: nulls_chart,
    measure.PathSum: path_sum_chart,
    measure.PathSums: several_chart,
    measure.Profile: profile_chart,
    measure.Readout: readout_chart,
    measure.Sensitivities: several_chart,
    measure.Sensitivity: _sensitivity,
    measure.Spectra: spectra_chart,
    experiments.Ablation: ablation_chart,
    experiments.ChainOfThought: chain_of_thought_chart,
    experiments.Figure2: figure_2_chart,
    experiments.Figure3: figure_3_chart,
    experiments.Figure4: figure_4_chart,
    experiments.Figure5: figure_5_chart,
    experiments.Figure8: figure_8_chart,
    experiments.Figure9: figure_9_chart,
    experiments.PositionEffect: position_chart,
    experiments.Repeats: repeats_chart,
    experiments.Reproduction: claims_chart,
    experiments.Retrieval: retrieval_chart,
    experiments.Study: study_chart,
    experiments.WindowStudy: windows_chart,
    runs.Corpus: corpus_chart,
    runs.CorpusCollapse: corpus_collapse_chart,
}
"""Which result is drawn by which chart; a class derived from one of them is drawn as that one."""


def chart_of(result: Result, size: str | float | int | None = None, title: bool = True) -> alt.TopLevelMixin:
    """The chart of a result, by its class; in a paper's `size` and without its title where that is asked for (`look.paper`).

    Raises `InputError` for a class without a chart, for an unknown size, and as that chart does.
    """
    if size is not None:
        paper.inches(size)  # refused before anything is drawn
    for kind in type(result).__mro__:
        if kind in CHARTS:
            chart = _named_under(CHARTS[kind](result), result)
            return chart if size is None and title else paper.sized(chart, size, title)
    raise InputError(
        f"expected a result with a row in ostools.reporting.charts.CHARTS, found {type(result).__name__}: "
        "add its chart there, or give the class a `plot` of its own"
    )


def _named_under(chart: Any, result: Result) -> Any:
    """The chart, whose title names the one mitigation that all of it was measured under, if there is one."""
    if (given := result.provenance.under) is None or "mitigation" in result.frame:
        return chart
    title = chart.title.copy() if isinstance(chart.title, alt.TitleParams) else alt.TitleParams(chart.title)
    said = [] if title.subtitle is alt.Undefined else title.subtitle
    title.subtitle = [f"Under the mitigation {theme.visible(given)}.", *([said] if isinstance(said, str) else said)]
    chart.title = title
    return chart


__all__ = [
    "CHARTS",
    "ablation_chart",
    "attention_chart",
    "attention_variation_chart",
    "behaviour_chart",
    "change_chart",
    "chart_of",
    "collapse_chart",
    "collapse_layers_chart",
    "comparison_chart",
    "contributions_chart",
    "corpus_chart",
    "corpus_collapse_chart",
    "counting_chart",
    "faithfulness_chart",
    "heads_chart",
    "layers_chart",
    "nulls_chart",
    "path_sum_chart",
    "position_chart",
    "precision_chart",
    "profile_chart",
    "repeats_chart",
    "sensitivity_chart",
    "several_chart",
    "spectra_chart",
]
