"""Representational collapse on each of Figure 5's prompts, and in which precisions it hides the
pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pandas as pd

from ostools import tasks
from ostools.ground import InputError, Progress
from ostools.hooks import HookError
from ostools.measure import Collapse, bytes_of, collapse
from ostools.measure.collapse.verdicts import IN_A_RANGE, OVERFLOWS, TO_THE_END, UNDECIDED
from ostools.mitigations.passes import own_windows
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
from ostools.reporting.sections.extent import CASTS, LONGEST_WINDOW, ONES, VERY_LARGE
from ostools.reporting.sections.records import (
    LeftOut,
    Measurements,
    Measuring,
    ReportSection,
    dear_from,
)
from ostools.results import Frame, frame_of

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
    "L2 at y, medians over the last quarter of the lengths. exact, stored: the float64 distance "
    "with the weights as given, and as this precision stores them; weight_shift: how far storing "
    "moves both alike; noise, pair_noise: of running in it, and of the difference; margin: "
    "stored over pair_noise"
)


def _measure_curves(run: Measuring) -> None:
    """Figure 5's prompts with the model cast; the ones in every format too, in the same passes."""
    names, lengths = run.plan.names, list(run.plan.lengths)
    windows = {window for window in own_windows(run.model).values() if window <= LONGEST_WINDOW}
    # One pass holds all lengths of ones: they go on past the model's sliding window.
    of_ones = sorted({*lengths, *range(32, max(windows, default=0) + 32, 32)})

    def curve(name: str, part: Progress | None) -> Collapse:
        if name == ONES and "precision" in names:
            run.measured.precision = _in_formats(run, of_ones, part)
            return _casts_of(run.measured.precision)
        curve_lengths = of_ones if name == ONES else lengths
        return collapse(
            run.model, name, lengths=curve_lengths, dtypes=run.plan.extent.casts, progress=part
        )

    section = "collapse" if "collapse" in names else "precision"
    curves = run.by_name(section, 40, tasks.FIGURE_5, curve)
    run.measured.collapses = curves if "collapse" in names else []
    run.measured.casts = curves if "precision" in names else []


def _in_formats(run: Measuring, lengths: list[int], progress: Progress | None) -> Collapse:
    """The curve of ones in every format; where one is refused (no hook), of the casts alone."""
    ones = partial(collapse, run.model, ONES, lengths=lengths, progress=progress)
    try:
        return ones(dtypes=run.plan.extent.formats)
    except (InputError, HookError) as error:
        run.measured.left_out.append(LeftOut("precision", f"{ONES} in every format: {error}"))
        return ones(dtypes=CASTS)


def _casts_of(result: Collapse) -> Collapse:
    """The rows of the casts, of a curve in every format."""
    rows: Frame = frame_of(result)
    exact: Frame = result.reference
    casts = rows[rows["dtype"].isin(CASTS)].reset_index(drop=True)
    reference = exact[exact["weights"].isin({"given", *casts["weights"]})].reset_index(drop=True)
    return replace(result, frame=casts, reference=reference)


def _state(measured: Measurements) -> str:
    cases = by_first_hidden(measured.casts or measured.collapses)
    kinds = {verdict.kind for *_, verdict in cases} - {OVERFLOWS}
    if kinds & {TO_THE_END, IN_A_RANGE}:
        return DETECTED
    return OPEN if UNDECIDED in kinds else NOT_DETECTED if kinds else UNTESTED


def _summary(results: Sequence[Collapse]) -> list[Part]:
    """All prompts: which precision hides the pair first, and on which the distance falls."""
    sentences = [pair_verdict(results), *collapse_summary(results)] if results else []
    return [Part(findings=sentences, leads="Collapse")] if results else []


def _collapse_parts(measured: Measurements) -> list[Part]:
    """All prompts together, then a block for each of Figure 5's, under its question."""
    from ostools.reporting.charts.collapse import collapse_chart

    parts = _summary(measured.collapses)
    for result in measured.collapses:
        task, route = task_of(result), result.provenance.parameters
        computed = f"Computed by {route.get('route')}: {route.get('route_reason')}."
        of_task = block(
            result,
            task,
            f"L2 distance of the two y against the number of items, {task}",
            chart=collapse_chart,
            title=f"{task}: {QUESTIONS[task]}",
            quote=f"{tasks.task(task, tasks.CollapseTask).example}…",
            notes=[computed] if route.get("route") else (),
        )
        parts.append(of_task)
    return parts


def _precision_parts(measured: Measurements) -> list[Part]:
    """Parts stored in few bits on one prompt, and the model cast on every prompt."""
    from ostools.reporting.charts.collapse_parts import precision_chart

    parts = [] if measured.collapses else _summary(measured.casts)
    if (result := measured.precision) is not None:
        caption = f"Which part of low precision hides the pair, {task_of(result)}"
        tables = [frame_table(f"{task_of(result)}: {_MEDIANS}", tails(result))]
        parts.append(
            block(result, "precision-chart", caption, chart=precision_chart, tables=tables)
        )
    if measured.casts:
        where = {
            task_of(cast): {dtype: verdict.where for dtype, verdict in verdicts_at_y(cast).items()}
            for cast in measured.casts
        }
        table = pd.DataFrame(where).rename_axis("dtype").reset_index()
        caption = f"{_HIDDEN_WHERE}, up to n = {longest(measured.casts)} (–: no range of lengths)"
        cast_tables = [frame_table(caption, table)]
        parts.append(Part(title="The model cast, on every prompt", tables=cast_tables))
    return parts


COLLAPSE = ReportSection(
    "collapse",
    "Representational collapse (Theorem 4.2, Figure 5)",
    "Collapse",
    COLLAPSE_LEAD,
    _measure_curves,
    40,
    lambda model, plan: (
        bytes_of(
            collapse,
            model,
            task=name,
            lengths=plan.lengths,
            dtypes=plan.extent.formats if "precision" in plan.names else plan.extent.casts,
        )
        for name in tasks.FIGURE_5
    ),
    _collapse_parts,
    ("Pair hidden", "is the pair closer than the rounding noise of its difference?"),
    _state,
)
PRECISION = replace(
    COLLAPSE,
    name="precision",
    title="Precision (Section 4)",
    nav="Precision",
    lead=PRECISION_LEAD,
    parts=_precision_parts,
    question=("", ""),
    dear=dear_from(VERY_LARGE, "and every format is a pass of its own"),
)
