"""Representational collapse on each of Figure 5's prompts, and in which precisions it hides the pair."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pandas as pd

from ostools import tasks
from ostools.ground.errors import InputError
from ostools.ground.progress import Progress
from ostools.ground.words import number
from ostools.hooks import HookError
from ostools.measure import Collapse, collapse
from ostools.measure.collapse.distances import collapse_memory
from ostools.measure.collapse.verdicts import IDENTICAL, IN_A_RANGE, OVERFLOWS, TO_THE_END, UNDECIDED
from ostools.measure.unloaded import Unloaded
from ostools.mitigations.passes import own_windows
from ostools.reporting.charts.collapse import collapse_chart
from ostools.reporting.charts.collapse_parts import precision_chart
from ostools.reporting.findings.collapse import (
    Case,
    cases,
    collapse_findings,
    collapse_summary,
    main_pair,
    nearest_to_noise,
    overflow_sentence,
    tails,
    task_of,
    verdicts_at_y,
)
from ostools.reporting.page.section import (
    FOUND,
    NOT_FOUND,
    OPEN,
    UNTESTED,
    Headline,
    Part,
    StripField,
    Table,
    frame_table,
)
from ostools.reporting.sections.blocks import block, in_detail
from ostools.reporting.sections.extent import CASTS, LONGEST_WINDOW, ONES, VERY_LARGE
from ostools.reporting.sections.records import LeftOut, Measurements, Plan, ReportSection, Run, Step, dear_from
from ostools.results import Frame, frame_of
from ostools.results.table_head import TableHead

TASKS_OF_ONES = (ONES, "figure-5c", "figure-5d")
"""The prompts whose sequence is ones."""
QUESTIONS = {
    "figure-5a": "ones after a counting question",
    "figure-5b": "random digits and a one, against two ones (one draw of digits, seed 0), after a counting question",
    "figure-5c": "ones after a copying question",
    "figure-5d": "ones with a comma after every third, after a copying question",
}
COLLAPSE_LEAD = (
    "A sequence and the same sequence with its last token repeated once: how far apart are the two representations of the last "
    "token, y? Where it is below the rounding noise of the difference, the dtype hides which of the two sequences it read."
)
PRECISION_LEAD = (
    "Over which lengths does rounding move the difference of the two sequences by more than their distance? Weights stored in "
    "few bits move both sequences alike, which does not hide the pair. What counts is the rounding while the model runs, of "
    "activations or of keys and values. A part of that rounding moves both sequences alike too. Below the noise of each "
    "sequence the pair can therefore still be told apart, as long as its distance is above the noise of the difference."
)
_HIDDEN_WHERE = (
    "The lengths at which the float64 distance at y is below the rounding noise of the difference in that dtype"
)


# --- what is measured


def _measure_curves(run: Run) -> None:
    """Figure 5's prompts with the model cast; the ones in every format too, in the same passes."""
    lengths = list(run.plan.lengths)
    windows = {window for window in own_windows(run.model).values() if window <= LONGEST_WINDOW}
    # One pass holds all lengths of ones: they go on past the model's sliding window.
    of_ones = sorted({*lengths, *range(32, max(windows, default=0) + 32, 32)})

    def curve(name: str, part: Progress | None) -> Collapse:
        if name == ONES and run.has("precision"):
            run.measured.precision = _in_formats(run, of_ones, part)
            return _casts_of(run.measured.precision)
        curve_lengths = of_ones if name == ONES else lengths
        return collapse(run.model, name, lengths=curve_lengths, dtypes=run.plan.extent.casts, progress=part)

    section = "collapse" if run.has("collapse") else "precision"
    curves = run.by_name(section, 40, tasks.FIGURE_5, curve)
    run.measured.collapses = curves if run.has("collapse") else []
    run.measured.casts = curves if run.has("precision") else []


def _in_formats(run: Run, lengths: list[int], progress: Progress | None) -> Collapse:
    """The curve of ones in every format; a refused one (overflow, no hook) is noted and left out."""
    formats = list(run.plan.extent.formats)
    while True:
        try:
            return collapse(run.model, ONES, lengths=lengths, dtypes=formats, progress=progress)
        except (InputError, HookError) as error:
            words = re.findall(r"[\w-]+", str(error))
            refused = next((name for name in formats[len(CASTS) :] if name in words), None)
            if refused is None:
                raise
            formats.remove(refused)
            run.measured.left_out.append(LeftOut("precision", f"{ONES} in {refused}: {error}"))


def _casts_of(result: Collapse) -> Collapse:
    """The rows of the casts, of a curve in every format."""
    rows: Frame = frame_of(result)
    exact: Frame = result.reference
    casts = rows[rows["dtype"].isin(CASTS)].reset_index(drop=True)
    stored = {"given", *casts["weights"]}
    return replace(result, frame=casts, reference=exact[exact["weights"].isin(stored)].reset_index(drop=True))


def _curves_memory(model: Unloaded, plan: Plan) -> Iterable[int]:
    dtypes = plan.extent.formats if "precision" in plan.names else plan.extent.casts
    return [collapse_memory(model, name, plan.lengths, dtypes=dtypes) for name in tasks.FIGURE_5]


CURVES = Step(40, _measure_curves, _curves_memory)


# --- the first screen


def _verdict(measured: Measurements) -> StripField:
    kinds = {case.verdict.kind for case in cases(measured.casts or measured.collapses)}
    state = OPEN if UNDECIDED in kinds else NOT_FOUND
    if kinds & {TO_THE_END, IN_A_RANGE}:
        state = FOUND
    elif not kinds - {OVERFLOWS}:
        state = UNTESTED
    return StripField("Collapse", state, "is the pair closer than the rounding noise of its difference?", "collapse")


def _headlines(measured: Measurements) -> list[Headline | None]:
    return [collapse_headline(measured.casts or measured.collapses)]


def collapse_headline(results: list[Collapse]) -> Headline | None:
    """Over which lengths a precision hides the pair; else how far the nearest is from that."""
    all_cases = cases(results)
    nearest = nearest_to_noise(results)
    if nearest is None:
        overflow = overflow_sentence(case.dtype for case in all_cases)
        verdict = "Whether the two sequences collapse was not tested."
        instead = f"{overflow} `ostools collapse --dtype bfloat16,float32` tests formats of a wider range."
        return Headline(verdict, instead, "collapse", "Collapse") if overflow else None
    hidden = [case for case in all_cases if case.verdict.ranges]
    undecided = [case for case in all_cases if case.verdict.kind == UNDECIDED]
    if hidden:
        first = hidden[0]
        items = "ones" if first.task in TASKS_OF_ONES else "items"
        verdict = f"{first.dtype} hides the difference between n and n + 1 {items} from {first.verdict.where}."
        text = (
            f"On {first.task} the pair is {first.verdict.words}. There its float64 distance is below the rounding noise of the "
            f"difference. {_all_hidden(hidden, all_cases)}"
        )
    else:
        result, tail = nearest
        prompts = f"{len(results)} prompts" if len(results) > 1 else "the prompt"
        text = (
            f"Of {prompts} and lengths up to {_longest(results)}, {tail['dtype']} on {task_of(result)} comes nearest: over the "
            f"last quarter of the lengths the distance is {number(tail['margin'])} times the rounding noise of the difference."
        )
        verdict = "The two sequences do not collapse over these lengths."
        if undecided:
            first = undecided[0]
            verdict = "Whether the two sequences collapse is not decided."
            text = f"On {first.task} in {first.dtype}: {first.verdict.words}. {text}"
    overflow = overflow_sentence(case.dtype for case in all_cases if case.verdict.kind == OVERFLOWS)
    parts = (text, overflow, *collapse_summary(results))
    return Headline(verdict, " ".join(filter(None, parts)), "collapse", "Collapse")


def _all_hidden(hidden: list[Case], all_cases: list[Case]) -> str:
    """The other cases beside the first, which was picked after looking."""
    measured = sum(case.verdict.kind != OVERFLOWS for case in all_cases)
    other_hidden = "".join(f" On {case.task} in {case.dtype} it is {case.verdict.words}." for case in hidden[1:])
    share = f"{len(hidden)} of {measured} cases (a prompt in a precision) have one."
    return f"This is the range that begins first. {share}{other_hidden}"


# --- the sections


def _collapse_parts(measured: Measurements) -> list[Part]:
    return [_prompt_part(result) for result in measured.collapses]


def _prompt_part(result: Collapse) -> Part:
    """The block of one of Figure 5's prompts, under its question."""
    task = task_of(result)
    title = f"{task}: {QUESTIONS.get(task, 'a prompt and one more item')}"
    quote = f"{tasks.task(task, tasks.CollapseTask).example}…" if task in tasks.COLLAPSE_TASKS else ""
    return collapse_block(result, task, title=title, quote=quote)


def collapse_block(result: Collapse, name: str, **part_fields: Any) -> Part:
    """The curves of one prompt, whether the distance falls, and the verdict at every site."""
    dtypes, route = frame_of(result)["dtype"].unique(), result.provenance.parameters
    caption = f"L2 distance of the two y against the number of items, {task_of(result)}"
    sentences = collapse_findings(result)
    notes = [f"Computed by {route['route']}: {route['route_reason']}."] if route.get("route") else ()
    more = in_detail(
        result, TableHead("verdicts", "pair seed dtype site layer status"), findings=sentences[1:], notes=notes
    )
    has_formats = len(dtypes) > 4 or any("-" in dtype for dtype in dtypes)
    chart = precision_chart if has_formats else _curves
    return block(result, name, caption, sentences[:1], chart=chart, more=[more], **part_fields)


def _curves(result: Collapse) -> Any:
    return collapse_chart(result, ("y",))


def _precision_parts(measured: Measurements) -> list[Part]:
    """Parts stored in few bits on one prompt, and the model cast on every prompt."""
    parts = []
    if (result := measured.precision) is not None:
        caption, headline = (
            f"Which part of low precision hides the pair, {task_of(result)}",
            collapse_headline([result]),
        )
        sentences = [] if headline is None else [headline.sentence]
        content: Any = {"chart": precision_chart, "tables": [_formats(result)]}
        parts.append(block(result, "precision-chart", caption, sentences, **content))
    if measured.casts:
        where = {
            task_of(cast): {dtype: verdict.where for dtype, verdict in verdicts_at_y(cast).items()}
            for cast in measured.casts
        }
        table = pd.DataFrame(where).rename_axis("dtype").reset_index()
        caption = f"{_HIDDEN_WHERE}, up to n = {_longest(measured.casts)} (–: no range of lengths)"
        parts.append(Part(title="The model cast, on every prompt", tables=[frame_table(caption, table)]))
    return parts


def _longest(results: list[Collapse]) -> int:
    return max(int(frame_of(result)["length"].max()) for result in results)


def _formats(result: Collapse) -> Table:
    """A row for each precision: what storing changes, beside what noise hides."""
    pair, table = main_pair(result), tails(result)
    where = {key[1:3]: verdict.where for key, verdict in result.verdicts_over_seeds().items() if key[0] == pair}
    hidden = {"hidden": "y", "logits identical": IDENTICAL}
    table = table.assign(**{name: [where[dtype, site] for dtype in table["dtype"]] for name, site in hidden.items()})
    caption = (
        f"{task_of(result)}: L2 at y, medians over the last quarter of the lengths. exact, stored: the float64 distance with "
        "the weights as given, and as this precision stores them; weight_shift: how far storing moves both alike; noise, "
        "pair_noise: of running in it, and of the difference; margin: stored over pair_noise. hidden: from which lengths the "
        f"pair is, up to n = {_longest([result])} (–: no range)"
    )
    return frame_table(caption, table)


COLLAPSE = ReportSection(
    "collapse",
    "Representational collapse (Theorem 4.2, Figure 5)",
    "Collapse",
    COLLAPSE_LEAD,
    CURVES,
    _collapse_parts,
    _headlines,
    _verdict,
)
PRECISION = ReportSection(
    "precision",
    "Precision (Section 4)",
    "Precision",
    PRECISION_LEAD,
    CURVES,
    _precision_parts,
    _headlines,
    dear=dear_from(VERY_LARGE, "and every format is a pass of its own"),
)
