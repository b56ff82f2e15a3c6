"""Small charts of the first section: collapse with its noise, sensitivity by position, right answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from ostools.measure import Collapse
from ostools.measure.answers.evaluate import Evaluation
from ostools.reporting.charts.collapse import hidden_ranges, marked_limits, model_limits, strips
from ostools.reporting.charts.positions import position_layers
from ostools.reporting.findings.answers import answer_counts, constant_answer
from ostools.reporting.findings.collapse import cases, main_pair, nearest_to_noise, task_of
from ostools.reporting.findings.effects import contrast_words
from ostools.reporting.page.page import Figure
from ostools.reporting.sections.records import Measurements
from ostools.reporting.style import axes, draw, theme
from ostools.results import Frame, frame_of

WIDTH, HEIGHT = 265, 104
COLOURS = (theme.COLOURS["full"], theme.COLOURS["frozen"])
SHAPES = ("circle", "M-1,-1L1,1M1,-1L-1,1")
"""A ring and a cross. Neither covers the other where two points fall into one place."""
_DASHES, _OFFSETS = ([1, 0], [5, 4]), (-2.5, 2.5)
"""For each line; pixels between an interval and its length: two equal ones stay two."""
_COLUMNS = ["length", "accuracy", "wilson_low", "wilson_high", "right", "asked"]


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
    return None if nearest is None else (nearest[0], nearest[1].dtype, why)


def distance_chart(result: Collapse, dtype: str) -> alt.LayerChart:
    """The float64 distance of the main pair, and the noise of the difference in `dtype`: what lies below it is hidden.

    Pale: the ranges of lengths at which it is hidden. Dotted: the trained length, the sliding window, the context.
    """
    frame = frame_of(result)
    rows = frame[(frame["site"] == "y") & (frame["per"] == "vector") & (frame["norm"] == "l2")]
    rows = rows[(rows["pair"] == main_pair(result)) & (rows["dtype"] == dtype)]
    means: Frame = rows.groupby("length")[["float64_distance", "pair_noise"]].mean().reset_index()
    names = {"float64_distance": "distance", "pair_noise": f"noise of {dtype}"}
    long = means.rename(columns=names).melt(id_vars="length", var_name="series", value_name="value")
    data, floor = axes.floored(long)
    hues = {names["float64_distance"]: theme.INK, names["pair_noise"]: theme.colour(dtype)}
    base = draw.rows(data).encode(
        x=axes.length_axis(data["length"], "items of the sequence"),
        y=draw.log_y(data["shown"], "L2 distance", floor),
        color=draw.hue("series", hues, columns=2, symbolType="circle", symbolSize=60),
        tooltip=["length:Q", "series:N", draw.VALUE],
    )
    ranges = [
        {**span, "series": names["pair_noise"]}
        for span in hidden_ranges(result.verdicts_over_seeds(), ["y"], [dtype])
        if span["pair"] == main_pair(result)
    ]
    layers = [*strips(ranges, draw.hue("series", hues, legend=None)), *marked_limits(model_limits(result))]
    layers += [base.mark_circle(size=6, opacity=1), *draw.zeros(base, floor)]
    return axes.themed(draw.layers(*layers, width=WIDTH, height=HEIGHT))


def right_chart(results: Sequence[Evaluation]) -> alt.LayerChart:
    """The share of right answers by length: a line a task, of at most two, with its Wilson intervals where it has some."""
    tasks = [theme.inert(task_of(result)) for result in results]
    parts = [
        result.summary[_COLUMNS].assign(task=task, place=place)
        for place, (result, task) in enumerate(zip(results, tasks, strict=True))
    ]
    data: Frame = pd.concat(parts, ignore_index=True)
    scale, axis = alt.Scale(domain=[0, 1], nice=False, padding=5), alt.Axis(values=[0, 0.5, 1], format=".0%")
    hue = draw.hue("task", dict(zip(tasks, COLOURS, strict=False)), columns=2, symbolSize=60)
    x = axes.length_axis(data["length"], "items of the sequence")
    base = draw.rows(data.drop(columns=["wilson_low", "wilson_high"])).encode(
        x=x,
        y=alt.Y("accuracy:Q", title="right answers", scale=scale, axis=axis),
        color=hue,
        tooltip=["task:N", "length:Q", "right:Q", "asked:Q"],
    )
    with_interval = data.dropna(subset=["wilson_low"])
    ends = draw.rows(with_interval).encode(x=x, y="wilson_low:Q", y2="wilson_high:Q", color=hue)
    intervals: list[Any] = [
        _of_task(ends, place).mark_rule(strokeWidth=3, opacity=0.45, xOffset=_OFFSETS[place])
        for place in sorted(set(with_interval["place"]))
    ]
    floors = [
        constant_share(result, task, place) for place, (result, task) in enumerate(zip(results, tasks, strict=True))
    ]
    constant = draw.rows(pd.DataFrame(floors)).mark_rule(strokeWidth=1.1, strokeDash=[1, 2])
    constant = constant.encode(y="accuracy:Q", color=hue)
    lines = [_of_task(base, place).mark_line(strokeWidth=1.5, strokeDash=_DASHES[place]) for place in range(len(tasks))]
    shape = alt.Shape(
        "task:N",
        scale=alt.Scale(domain=tasks, range=list(SHAPES[: len(tasks)])),
        legend=alt.Legend(title=None, symbolSize=60, columns=2),
    )
    points = base.mark_point(filled=False, size=40, strokeWidth=1.5, opacity=1).encode(shape=shape)
    return axes.themed(draw.layers(constant, *intervals, *lines, points, width=WIDTH, height=HEIGHT))


def constant_share(result: Evaluation, task: str, place: int) -> dict[str, Any]:
    """The share of prompts on which one and the same answer is right."""
    _, right, prompts = constant_answer(result)
    return {"task": task, "place": place, "accuracy": right / prompts}


def _of_task(chart: Any, place: int) -> Any:
    return chart.transform_filter(f"datum.place === {place}")
