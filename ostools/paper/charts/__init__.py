"""The results of this room as charts in the five forms of `ostools.reporting`, and in sentences."""

from collections.abc import Callable
from typing import TypeAlias

from ostools.paper import behaviour as answer_figures
from ostools.paper.charts import behaviour, curves
from ostools.paper.claims.claim import Reproduction
from ostools.paper.figure5 import Figure5
from ostools.paper.retrieval import Retrieval
from ostools.paper.synthetic import Figure8, Figure9
from ostools.results import Chart, Result

View: TypeAlias = tuple[Callable[..., Chart], Callable[..., list[str]]]

VIEWS: dict[type[Result], View] = {
    answer_figures.Figure2: (behaviour.figure_2_chart, behaviour.figure_2_findings),
    answer_figures.Figure3: (behaviour.figure_3_chart, behaviour.figure_3_findings),
    answer_figures.Figure4: (behaviour.figure_4_chart, behaviour.figure_4_findings),
    Figure5: (curves.figure_5_chart, curves.figure_5_findings),
    Figure8: (curves.figure_8_chart, curves.figure_8_findings),
    Figure9: (curves.figure_9_chart, curves.figure_9_findings),
    Retrieval: (curves.retrieval_chart, curves.retrieval_findings),
    Reproduction: (behaviour.claims_chart, behaviour.reproduction_findings),
}
"""How the results of each class are drawn, and what they say."""
