"""Representational collapse on each of Figure 5's prompts, and in which precisions it hides the
pair.
"""

import pandas as pd

from ostools import tasks
from ostools.measure import Collapse, collapse
from ostools.measure.collapse.verdicts import IN_A_RANGE, OVERFLOWS, TO_THE_END, UNDECIDED
from ostools.reporting.findings.answers import task_of
from ostools.reporting.findings.collapse import (
    by_first_hidden,
    collapse_summary,
    longest,
    pair_verdict,
    tails,
    verdicts_at_y,
)
from ostools.reporting.page.section import (
    DETECTED,
    NOT_DETECTED,
    OPEN,
    UNTESTED,
    Part,
    block,
    frame_table,
)
from ostools.reporting.sections.extent import LARGE, ONES
from ostools.reporting.sections.records import (
    Calls,
    Measurements,
    ReportPlan,
    ReportSection,
    dear_from,
    forecasts,
    measures,
)
from ostools.theory.distances import IN_A_ROW

QUESTIONS = {
    "figure-5a": "ones after a counting question",
    "figure-5b": (
        "random digits and a one, against two ones (one draw of digits, seed 0), after a "
        "counting question"
    ),
    "figure-5c": "ones after a copying question",
    "figure-5d": "ones with a comma after every third, after a copying question",
}
COLLAPSE_LEAD = (
    "A sequence and the same sequence with its last token repeated once: how far apart are the "
    "two representations of the last token, y? Where it is below the rounding noise of the "
    "difference, the dtype hides which of the two sequences it read."
)
PRECISION_LEAD = (
    "Over which lengths does rounding move the difference of the two sequences by more than "
    "their distance? Weights stored in few bits move both sequences alike, which does not hide "
    "the pair. What counts is the rounding while the model runs, of activations or of keys and "
    "values. A part of that rounding moves both sequences alike too. Below the noise of each "
    "sequence the pair can therefore still be told apart, as long as its distance is above the "
    "noise of the difference."
)
_HIDDEN_WHERE = (
    "The lengths at which the float64 distance at y is below the rounding noise of the "
    "difference in that dtype"
)
_MEDIANS = (
    "L2 at y, medians over the last quarter of the lengths. float64_distance: with the weights as "
    "this precision stores them; weight_shift: how far storing moves both alike; noise, "
    "pair_noise: of running in it, and of the difference; margin: float64_distance over pair_noise"
)


def _curves(plan: ReportPlan) -> Calls:
    """Figure 5's prompts, the model cast."""
    lengths = dict.fromkeys(tasks.FIGURE_5, plan.lengths) | {ONES: plan.of_ones}
    return {
        task: (collapse, {"task": task, "lengths": lengths[task], "dtypes": plan.extent.casts})
        for task in tasks.FIGURE_5
    }


def _precisions(plan: ReportPlan) -> Calls:
    """The curve of ones in every format."""
    options = {"task": ONES, "lengths": plan.of_ones, "dtypes": plan.extent.formats}
    return {ONES: (collapse, options)}


def _state(results: list[Collapse]) -> str:
    kinds = {verdict.kind for *_, verdict in by_first_hidden(results)} - {OVERFLOWS}
    if kinds & {TO_THE_END, IN_A_RANGE}:
        return DETECTED
    return OPEN if UNDECIDED in kinds else NOT_DETECTED if kinds else UNTESTED


def _collapse_parts(measured: Measurements) -> list[Part]:
    """All prompts together (which precision hides the pair first, and on which the distance falls),
    then a block for each of Figure 5's, under its question.
    """
    results = measured.of("collapse")
    where = {
        task_of(result): {dtype: verdict.where for dtype, verdict in verdicts_at_y(result).items()}
        for result in results
    }
    table = pd.DataFrame(where).rename_axis("dtype").reset_index()
    caption = f"{_HIDDEN_WHERE}, up to n = {longest(results)} (–: no range of lengths)"
    sentences = [pair_verdict(results), *collapse_summary(results)]
    tables = [frame_table(caption, table)]
    parts = [Part(findings=sentences, tables=tables, leads="Collapse")]
    for result in results:
        task, route = task_of(result), result.provenance.parameters
        of_task = block(
            result,
            task,
            f"L2 distance of the two y against the number of items, {task}",
            title=f"{task}: {QUESTIONS[task]}",
            quote=f"{tasks.task(task, tasks.CollapseTask).example}…",
            notes=[f"Computed by {route.get('route')}: {route.get('route_reason')}."],
        )
        parts.append(of_task)
    return parts


def _precision_parts(measured: Measurements) -> list[Part]:
    """Parts stored in few bits, on one prompt."""
    from ostools.reporting.charts.collapse_parts import precision_chart

    (result,) = measured.of("precision")
    caption = f"Which part of low precision hides the pair, {task_of(result)}"
    tables = [frame_table(f"{task_of(result)}: {_MEDIANS}", tails(result))]
    return [
        block(
            result,
            "precision-chart",
            caption,
            chart=precision_chart,
            tables=tables,
            leads="Precision",
        )
    ]


COLLAPSE = ReportSection(
    "collapse",
    "Representational collapse (Theorem 4.2, Figure 5)",
    "Collapse",
    COLLAPSE_LEAD,
    measures("collapse", _curves),
    forecasts(_curves),
    _collapse_parts,
    (
        "Pair hidden",
        "is the pair closer than the rounding noise of its difference, "
        f"at {IN_A_ROW} lengths in a row?",
    ),
    _state,
)
PRECISION = ReportSection(
    "precision",
    "Precision (Section 4)",
    "Precision",
    PRECISION_LEAD,
    measures("precision", _precisions),
    forecasts(_precisions),
    _precision_parts,
    dear=dear_from(LARGE, "and every format is a pass of its own"),
)
