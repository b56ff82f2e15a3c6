"""Representational collapse on each of Figure 5's prompts, and in which precisions it hides the pair."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ostools import tasks
from ostools.ground.words import number
from ostools.measure import Collapse
from ostools.measure.collapse.verdicts import IDENTICAL
from ostools.reporting.charts.collapse import collapse_chart
from ostools.reporting.charts.collapse_parts import precision_chart
from ostools.reporting.findings.collapse import (
    collapse_findings,
    main_pair,
    precision_findings,
    tails,
    task_of,
    verdicts_at_y,
)
from ostools.reporting.page.section import More, Part, Section, Table, table_from
from ostools.reporting.sections.blocks import block
from ostools.reporting.sections.measurements import Measurements
from ostools.results import Frame, frame_of

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
NO_REFERENCE = (
    "No verdict can be read from these cells: they were stored without the float64 distance that it is read from."
)


def collapse_section(measured: Measurements) -> Section | None:
    """Figure 5's prompts; None without a curve."""
    if not measured.collapses:
        return None
    parts = [_prompt_part(result) for result in measured.collapses]
    title = "Representational collapse (Theorem 4.2, Figure 5)"
    return Section("collapse", title, "Collapse", COLLAPSE_LEAD, parts)


def _prompt_part(result: Collapse) -> Part:
    """The block of one of Figure 5's prompts, under its question."""
    task = task_of(result)
    title = f"{task}: {QUESTIONS.get(task, 'a prompt and one more item')}"
    quote = f"{tasks.task(task, tasks.CollapseTask).example}…" if task in tasks.COLLAPSE_TASKS else ""
    return collapse_block(result, task, title=title, quote=quote)


def collapse_block(result: Collapse, name: str, **part_fields: Any) -> Part:
    """The curves of one prompt, whether the distance falls, and the verdict at every site."""
    task, dtypes = task_of(result), frame_of(result)["dtype"].unique()
    caption = f"L2 distance of the two y against the number of items, {task}"
    if result.reference.empty:
        return block(result, name, caption, [NO_REFERENCE], chart=_curves, **part_fields)
    trained: Any = result.provenance.model.get("trained_lengths")
    sentences, route = collapse_findings(result, trained), result.provenance.parameters
    more = More(
        "Dtype by dtype, and the verdict at every site",
        findings=sentences[1:],
        tables=[_verdicts(result, task)],
        notes=[f"Computed by {route['route']}: {route['route_reason']}."] if route.get("route") else (),
    )
    has_formats = len(dtypes) > 4 or any("-" in dtype for dtype in dtypes)
    chart = precision_chart if has_formats else _curves
    return block(result, name, caption, sentences[:1], chart=chart, more=[more], **part_fields)


def _curves(result: Collapse) -> Any:
    return collapse_chart(result, ("y",))


def _verdicts(result: Collapse, task: str) -> Table:
    """The verdict at every site and dtype."""
    table: Frame = result.verdicts()
    names = ["pair", "seed", "dtype", "site", *(["layer"] if table["layer"].nunique() > 1 else [])]
    columns = {name: name for name in names} | {"hidden": "status"}
    return table_from(f"Where the pair is hidden, {task}", table.to_dict("records"), columns)


def precision_section(measured: Measurements) -> Section | None:
    """Parts stored in few bits on one prompt, and the model cast on every prompt; None without both."""
    parts = [] if measured.precision is None else [_formats_part(measured.precision)]
    if measured.casts:
        parts.append(Part(title="The model cast, on every prompt", tables=[_casts(measured.casts)]))
    if not parts:
        return None
    return Section("precision", "Precision (Section 4)", "Precision", PRECISION_LEAD, parts)


def _formats_part(result: Collapse) -> Part:
    """The chart of one prompt: casts and stored parts side by side."""
    task = task_of(result)
    caption, sentences = f"Which part of low precision hides the pair, {task}", precision_findings(result)
    tables = [_formats(result, task)]
    return block(result, "precision-chart", caption, sentences, chart=precision_chart, tables=tables)


def _formats(result: Collapse, task: str) -> Table:
    """A row for each precision: what storing changes, beside what noise hides."""
    pair, over_seeds = main_pair(result), result.verdicts_over_seeds()
    where = {(dtype, site): verdict.where for (kind, dtype, site, _), verdict in over_seeds.items() if kind == pair}
    columns: dict[str, Any] = {
        "precision": "dtype",
        "distance, float64": lambda tail: number(tail["exact"]),
        "… weights so stored": lambda tail: number(tail["stored"]),
        "shift by storing (both alike)": lambda tail: number(tail["weight_shift"]),
        "noise of running": lambda tail: number(tail["noise"]),
        "… of the difference": lambda tail: number(tail["pair_noise"]),
        "pair hidden from n": lambda tail: where[tail["dtype"], "y"],
        "logits bit-identical from n": lambda tail: where[tail["dtype"], IDENTICAL],
    }
    caption = (
        f"{task}: L2 at y, medians over the last quarter of the lengths, and the lengths at which the float64 distance is "
        f"below the noise of the difference, up to n = {int(frame_of(result)['length'].max())} (–: no range of lengths)"
    )
    return table_from(caption, map(vars, tails(result)), columns)


def _casts(results: list[Collapse]) -> Table:
    """The lengths at which each dtype hides the pair at y, on each prompt."""
    where: dict[str, Mapping[str, str]] = {
        task_of(result): {dtype: verdict.where for dtype, verdict in verdicts_at_y(result).items()}
        for result in results
    }
    n_max = max(int(frame_of(result)["length"].max()) for result in results)
    dtypes = dict.fromkeys(dtype for ranges in where.values() for dtype in ranges)
    rows = [[dtype, *(ranges.get(dtype, "–") for ranges in where.values())] for dtype in dtypes]
    caption = (
        "The lengths at which the float64 distance at y is below the rounding noise of the difference in that dtype, up to "
        f"n = {n_max} (–: no range of lengths)"
    )
    return Table(caption, ["dtype", *where], rows)
