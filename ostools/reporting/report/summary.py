"""The first section of a report: a strip of verdicts, headlines with their figures, small charts.

The first headline is the first, in the report's order, that found something. No headline is picked after looking: the
derivative is the first of the profile, and every prompt counts for collapse. What was not tested, or not decided, is said to
be so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import altair as alt
import pandas as pd

from ostools.measure import Collapse
from ostools.measure.answers.result import Evaluation
from ostools.reporting.charts.collapse import hidden_ranges, marked_limits, model_limits, strips
from ostools.reporting.charts.positions import position_layers
from ostools.reporting.findings.answers import answer_counts, constant_answer
from ostools.reporting.findings.collapse import cases, main_pair, nearest_to_noise, task_of, vectors_at
from ostools.reporting.findings.effects import contrast_words
from ostools.reporting.forms import BAND, curve, log_rows
from ostools.reporting.page.page import Figure
from ostools.reporting.page.section import FOUND, UNTESTED, Headline, Part, Section, StripField
from ostools.reporting.sections import SECTIONS
from ostools.reporting.sections.records import Measurements
from ostools.reporting.style import axes, draw, theme
from ostools.results import Frame, frame_of

WIDTH, HEIGHT = 265, 104
COLOURS = (theme.COLOURS["full"], theme.COLOURS["frozen"])
_ITEMS = "items of the sequence"


def findings_section(measured: Measurements, present: Sequence[str]) -> Section:
    """The first section; each verdict and headline leads to its section, where that is `present`."""

    def linked(item: Any) -> Any:
        return item if item.section in present else replace(item, section="")

    lines: list[Headline] = [linked(line) for line in headlines(measured)]
    fields: list[StripField] = [linked(field) for field in verdicts(measured)]
    missing = _missing(measured)
    if not lines and measured.empty and measured.left_out:
        missing = ["Nothing could be measured. The reasons stand below."]
    elif not lines and not missing:
        missing = ["What was asked for has no headline of its own. Its findings stand in its section."]
    lead = f"overview-{lines[0].section}" if lines else ""
    charts = sorted(overview(measured), key=lambda figure: figure.name != lead)
    part = Part(strip=fields if lines else (), headlines=lines, findings=missing, overview=charts)
    return Section("findings", "Findings", "Findings", "", [part])


def _missing(measured: Measurements) -> list[str]:
    """Questions without an answer because something was refused, with the first reason."""
    sentences = []
    for name in measured.provenance.parameters.get("sections", ()):
        reasons = [omission.reason for omission in measured.left_out if omission.section == name]
        section = SECTIONS[name]
        if not reasons or section.verdict is None:
            continue
        field, has_headline = section.verdict(measured), any(section.headlines(measured))
        if field.state == UNTESTED or not has_headline:
            question = field.name if has_headline else section.nav
            more = f" ({len(reasons) - 1} more below)" if len(reasons) > 1 else ""
            sentences.append(f"There is no finding on {question.lower()}. The reason: {reasons[0]}{more}.")
    return sentences


def verdicts(measured: Measurements) -> list[StripField]:
    """A field for each question, in the report's order; what was left for another time stands with its command."""
    tried = {*measured.provenance.parameters.get("sections", ())} - {
        omission.section for omission in measured.left_out if "--section" in omission.reason
    }
    fields = [section.verdict(measured) for section in SECTIONS.values() if section.verdict is not None]
    return [
        replace(field, rule=f"{field.rule} `ostools report --section {field.section}` tests it")
        if field.state == UNTESTED and field.section not in tried
        else field
        for field in fields
    ]


def headlines(measured: Measurements) -> list[Headline]:
    """A headline for each question whose data exist, in the report's order; the first that found something leads."""
    builders = dict.fromkeys(section.headlines for section in SECTIONS.values())
    lines = [line for builder in builders for line in builder(measured) if line is not None]
    found = [field.section for field in verdicts(measured) if field.state == FOUND]
    lead = next((line for line in lines if line.section in found), None)
    return sorted(lines, key=lambda line: line is not lead)


# --- small charts: collapse with its noise, sensitivity by position, right answers


def overview(measured: Measurements) -> list[Figure]:
    """The charts whose data exist."""
    figures = []
    if leading := _leading(measured.casts or measured.collapses):
        result, dtype, why = leading
        caption = f"Distance of the pair and noise, {task_of(result)}"
        figures.append(Figure("overview-collapse", distance_chart(result, dtype), caption, f"{caption}. {why}"))
    if measured.position is not None:
        caption, words = "Sensitivity by position in natural text", " ".join(contrast_words(measured.position))
        chart = position_layers(measured.position, WIDTH, HEIGHT)
        figures.append(Figure("overview-position", chart, caption, f"{caption}. {words}"))
    if measured.evaluations:
        caption = "Right answers by length"
        words = "; ".join(f"{task_of(result)}: {answer_counts(result)[0]} right" for result in measured.evaluations)
        chart = right_chart(measured.evaluations)
        figures.append(
            Figure("overview-evaluate", chart, f"{caption} (dotted: one answer to all)", f"{caption}. {words}.")
        )
    return figures


def _leading(results: list[Collapse]) -> tuple[Collapse, str, str] | None:
    """The prompt and precision of the first headline, and why it is that one."""
    hidden = [case for case in cases(results) if case.verdict.ranges]
    if hidden:
        result = next(result for result in results if task_of(result) == hidden[0].task)
        return result, hidden[0].dtype, "Of all ranges that are hidden the one that begins first."
    nearest = nearest_to_noise(results)
    why = "Of all prompts and precisions the one that comes nearest to the noise."
    return None if nearest is None else (nearest[0], nearest[1]["dtype"], why)


def distance_chart(result: Collapse, dtype: str) -> alt.LayerChart:
    """The float64 distance of the main pair, and the noise of the difference in `dtype`: what lies below it is hidden.

    Pale: the ranges of lengths at which it is hidden. Dotted: the trained length, the sliding window, the context.
    """
    frame, pair = vectors_at(frame_of(result), "y"), main_pair(result)
    noise = f"noise of {dtype}"
    names = {"float64_distance": "distance", "pair_noise": noise}
    means: Frame = frame[(frame["pair"] == pair) & (frame["dtype"] == dtype)].groupby("length")[list(names)].mean()
    long = means.reset_index().rename(columns=names).melt(id_vars="length", var_name="series", value_name="value")
    rows, y = log_rows(long, "L2 distance")
    hues = {"distance": theme.INK, noise: theme.colour(dtype)}
    hue = draw.hue("series", hues, columns=2, symbolType="circle", symbolSize=60)
    verdicts = result.verdicts_over_seeds()
    ranges = [span | {"series": noise} for span in hidden_ranges(verdicts, ["y"], [dtype]) if span["pair"] == pair]
    layers = [*strips(ranges, hue), *marked_limits(model_limits(result))]
    layers += curve(rows, axes.length_axis(rows["length"], _ITEMS), y, hue, width=0, points=6)
    return axes.themed(draw.layers(*layers, width=WIDTH, height=HEIGHT))


def right_chart(results: Sequence[Evaluation]) -> alt.LayerChart:
    """The share of right answers by length: a line a task, of at most two, with its Wilson intervals where it has some.

    Dotted: the share of prompts on which one and the same answer is right.
    """
    tasks = [theme.inert(task_of(result)) for result in results]
    names = {"accuracy": "value", "wilson_low": "low", "wilson_high": "high"}
    parts = [result.summary[["length", *names, "right", "asked"]] for result in results]
    joined: Any = pd.concat(parts, keys=tasks, names=["series"])
    rows = joined.rename(columns=names).reset_index("series")
    legend: dict[str, Any] = {"title": None, "columns": 2, "symbolSize": 60}  # of colour and dash, in one
    hue = draw.hue("series", dict(zip(tasks, COLOURS, strict=False)), **legend)
    scale, axis = alt.Scale(domain=[0, 1], nice=False, padding=5), alt.Axis(values=[0, 0.5, 1], format=".0%")
    dashes = alt.Scale(domain=tasks, range=[[1, 0], [5, 4]][: len(tasks)])
    looks: dict[str, Any] = {
        "dash": alt.StrokeDash("series:N", scale=dashes, legend=alt.Legend(**legend)),
        "bands": [BAND],
        "points": 30,
    }
    y = {"title": "right answers", "scale": scale, "axis": axis}
    marks = curve(rows, axes.length_axis(rows["length"], _ITEMS), y, hue, **looks)
    shares = [{"series": task, "value": constant_share(result)} for task, result in zip(tasks, results, strict=True)]
    constant = draw.rows(pd.DataFrame(shares)).mark_rule(strokeWidth=1.1, strokeDash=[1, 2])
    return axes.themed(draw.layers(constant.encode(y="value:Q", color=hue), *marks, width=WIDTH, height=HEIGHT))


def constant_share(result: Evaluation) -> float:
    """The share of prompts on which one and the same answer is right."""
    _, right, prompts = constant_answer(result)
    return right / prompts
