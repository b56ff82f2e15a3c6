"""Figures 2, 3, 4, 6 and 7 as in the paper, and the paper's claims on one model."""

from __future__ import annotations

import altair as alt
import pandas as pd

from ostools.ground.words import number, title_of
from ostools.paper.behaviour import CUT_OFF, SOMETHING_ELSE, Figure2, Figure3, Figure4
from ostools.paper.claims import claim
from ostools.paper.claims.claims import Reproduction
from ostools.reporting.charts.answers import (
    NOTHING_CAME,
    OTHER_WORDS,
    OUTCOMES,
    RIGHT,
    WRONG,
    answer_outcomes,
    error_axis,
    length_axis,
    training_end,
)
from ostools.reporting.findings import MOST, first_few
from ostools.reporting.forms import curve, looks_by_name, mark_cells, rules
from ostools.reporting.style import axes, draw, theme
from ostools.results import Chart, Frame, frame_of

_CLAIMS_WIDTH, _CLAIM_HEIGHT = 460, 19
_CLAIM_LOOKS = {
    claim.AGREES: ("right", "circle"),
    claim.BY_CONSTRUCTION: ("no answer", "cross"),
    claim.DISAGREES: ("wrong", "diamond"),
    claim.UNTESTED: ("no answer", "square"),
}


def claims_chart(result: Reproduction) -> Chart:
    """The claims in the paper's order, each with its place; colour and shape say the same as the
    column.
    """
    frame = frame_of(result)
    rows = frame[["claim", "place", "outcome"]].assign(name=frame["claim"] + ", " + frame["place"])
    looks: theme.Looks = {"orient": "top", "labelAngle": 0, "grid": False, "domain": False}
    column = axes.names(list(claim.OUTCOMES), alt.X, field="outcome", **looks)
    row = axes.names(list(rows["name"]), grid=True, domain=False)
    cells = mark_cells(rows, column, row, looks_by_name("outcome", _CLAIM_LOOKS, legend=None), 70)
    panel = draw.panel([cells], _CLAIMS_WIDTH, _CLAIM_HEIGHT * max(len(rows), 1))
    title = f"{len(rows)} claims of the paper on {title_of(result.provenance.model)}"
    return draw.figure([[panel]], title, reproduction_findings(result)[:1])


def reproduction_findings(result: Reproduction) -> list[str]:
    """How many claims have which outcome; then each claim that does not agree, with what was
    measured.
    """
    counts = ", ".join(f"{name}: {count}" for name, count in result.outcomes.items())
    frame = frame_of(result)
    differing = frame[frame["outcome"] == claim.DISAGREES].to_dict("records")
    differences = [
        f"{row['claim']} ({row['place']}) does not agree: {row['measured']}" for row in differing
    ]
    return [f"{counts}.", *first_few(differences, MOST - 1)]


_COPY_WIDTH, _COPY_ROW = 270, 44
_TITLES = {
    "a": "(a) 1…10 and 01…1",
    "b": "(b) the same, with the hint",
    "c": "(c) 0s and 1s in turn",
}
_MARKS = {"copy-last": ("last digit", "diamond"), "copy-first": ("first digit", "square")}
_PLACES = [words for words, _ in _MARKS.values()]


def figure_2_chart(result: Figure2) -> Chart:
    """Three panels side by side; the rows are the outcomes that occurred, right and wrong always
    among them. A dotted line stands where the model's training ends.
    """
    frame = frame_of(result)
    frame = frame.assign(outcome=answer_outcomes(frame))
    rows = [name for name in OUTCOMES if name in (RIGHT, WRONG) or (frame["outcome"] == name).any()]
    trained = result.provenance.model.get("trained_lengths") or {}
    end = min((trained[name] for name in _MARKS if name in trained), default=None)
    panels = [
        _copy_panel(group, rows, end, index == 0)
        for index, (_, group) in enumerate(frame.groupby("panel"))
    ]
    return draw.figure([panels], result.title, result.deviations, spacing=26)


def figure_2_findings(result: Figure2) -> list[str]:
    """How often each digit was right, a sentence a panel."""
    frame = frame_of(result)
    frame = frame.assign(outcome=answer_outcomes(frame))
    sentences = []
    for panel, group in frame.groupby("panel"):
        counts = [
            _copy_counts(rows, _MARKS[str(task)][0])
            for task, rows in group.groupby("task", sort=False)
        ]
        sentences.append(f"{_TITLES[str(panel)]}: {'; '.join(counts)}.")
    return sentences


def _copy_panel(group: Frame, rows: list[str], end: int | None, first: bool) -> alt.LayerChart:
    tasks = [name for name in _MARKS if (group["task"] == name).any()]
    answers = [theme.short_word(text, 60) for text in group["answer"].fillna(NOTHING_CAME)]
    places = group["task"].map(lambda name: _MARKS[name][0])
    data = group[["length", "key", "outcome"]].assign(answer=answers, place=places)
    legend: theme.Looks = {
        "symbolType": alt.Undefined,
        "symbolSize": 70,
        "symbolStrokeColor": theme.colour("float64"),
    }
    looks = looks_by_name(
        "place", {words: (task, shape) for task, (words, shape) in _MARKS.items()}, **legend
    )
    looks["yOffset"] = alt.YOffset("place:N", scale=alt.Scale(domain=_PLACES, paddingOuter=0.6))
    row = axes.names(rows, field="outcome", grid=True, labels=first, domain=False, bandPosition=0.5)
    column = length_axis(group["length"], "sequence length (digits)")
    counts = [_copy_counts(group[group["task"] == name], _MARKS[name][0]) for name in tasks]
    marks = [mark_cells(data, column, row, looks), *training_end(end, group["length"], _COPY_ROW)]
    title = _TITLES[str(group["panel"].iloc[0])]
    return draw.panel(marks, _COPY_WIDTH, _COPY_ROW * len(rows), title, *counts, **draw.BOLD)


def _copy_counts(group: Frame, place: str) -> str:
    """Right is the line that was asked for; what else was said stands after it."""
    counts = {kind: int((group["outcome"] == kind).sum()) for kind in OUTCOMES}
    names = {OTHER_WORDS: "in other words", SOMETHING_ELSE: SOMETHING_ELSE, CUT_OFF: CUT_OFF}
    other_counts = [f"{counts[kind]} {words}" for kind, words in names.items() if counts[kind]]
    return ", ".join(
        [f"{place} right at {counts[RIGHT]} of {len(group) - counts[NOTHING_CAME]}", *other_counts]
    )


_ERROR_WIDTH, _ERROR_HEIGHT = 210, 190
COLUMNS = {
    "sum-ones": "sum 1+…+1",
    "count-ones": "count ones, all ones",
    "count-ones-bernoulli": "count ones, p(1) = 0.7",
    "count-word": "count ‘car’ in a sentence",
}
"""The paper's columns: the task and what its panel is called."""
WAYS = {"none": "no CoT", "cot-zero-shot": "CoT zero-shot", "cot-few-shot": "CoT few-shot"}
"""The paper's lines: the mode of a task, and what the legend calls it."""
LINES = tuple(WAYS.values())
_FAR = 20
"""Errors over this many times the longest sequence would leave the others too little room on a
linear axis.
"""


def figure_3_chart(result: Figure3) -> Chart:
    """The mean absolute error of the answers that are numbers, with bars from the least to the
    greatest seed. A line breaks where no answer held a number. A dotted line stands where the
    model's training ends.
    """
    frame = frame_of(result)
    summary = _error_summary(frame)
    largest = max(int(summary["high"].max()), 1) if summary["high"].notna().any() else 1
    wide = largest > _FAR * int(frame["length"].max())
    axis = (
        error_axis(largest, largest * 5)
        if wide
        else axes.linear("absolute error", (0, largest * 1.12), 4)
    )
    trained = result.provenance.model.get("trained_lengths") or {}
    tasks = [name for name in COLUMNS if (frame["task"] == name).any()]
    panels = [
        _error_panel(
            summary[summary["task"] == name],
            axes.quiet(axis) if index else axis,
            trained.get(name),
        )
        for index, name in enumerate(tasks)
    ]
    seeds, counts = summary["asked"].max(), f"{summary['none'].sum()} of {summary['asked'].sum()}"
    notes = [
        *result.deviations,
        f"Line: mean of up to {seeds} seeds; bars: least to greatest. There are answers without a "
        f"number ({counts}), which the errors leave out.",
    ]
    if wide:
        notes.append(
            "Error axis: linear to 1, then logarithmic. The paper's text does not name one."
        )
    return draw.figure([panels], result.title, notes, spacing=20, color="shared")


def figure_3_findings(result: Figure3) -> list[str]:
    """How many answers are numbers, and their mean absolute error, a sentence a task and way of
    asking.
    """
    sentences = []
    for (task, series), rows in _error_summary(frame_of(result)).groupby(
        ["task", "series"], sort=False
    ):
        numbers = rows[rows["read"] > 0]
        words = f"{rows['read'].sum()} of {rows['asked'].sum()} answers are numbers"
        if len(numbers):
            last = numbers.loc[numbers["length"].idxmax()]
            words += (
                f"; their mean absolute error is {number(numbers['mean'].mean())} over "
                f"{len(numbers)} lengths and "
            )
            words += f"{number(last['mean'])} at {last['length']} items, the longest of them"
        sentences.append(f"{COLUMNS[str(task)]}, {series}: {words}.")
    return sentences


def _error_summary(frame: Frame) -> Frame:
    """Mean, least and greatest error over seeds, and how many of the answers held no number."""
    keys = ["task", "mode", "length"]
    # Of a hosted model some answers may never have come: a line breaks there, too.
    grouped = frame.assign(
        came=frame["correct"].notna(), error=frame["absolute_error"].astype("Float64").astype(float)
    ).groupby(keys, as_index=False)
    table = grouped.agg(
        mean=("error", "mean"),
        low=("error", "min"),
        high=("error", "max"),
        asked=("came", "sum"),
        read=("error", "count"),
    )
    return table.assign(series=table["mode"].map(WAYS), none=table["asked"] - table["read"])


def _error_panel(rows: Frame, axis: theme.Looks, end: int | None) -> alt.LayerChart:
    """Means with bars from least to greatest, a line a way of asking."""
    data = rows[["length", "series", "low", "high", "asked", "read"]].assign(value=rows["mean"])
    x = length_axis(rows["length"], "sequence length (items)")
    hue = draw.hue("series", LINES, columns=3, symbolStrokeWidth=3)
    spread = data[data["high"] > data["low"]]
    marks = rules(spread, "x", x, "low", "high", color=hue, strokeWidth=1)
    marks += curve(data, x, axis, hue, points=22) + training_end(end, rows["length"], 6)
    title = COLUMNS[str(rows["task"].iloc[0])]
    return draw.panel(marks, _ERROR_WIDTH, _ERROR_HEIGHT, title, **draw.BOLD)


_COUNT_WIDTH, _COUNT_HEIGHT = 225, 84
_EXTENT = 24  # of an axis, so that panels stand below each other whatever its numbers are
_RIGHT_KEY = "right answers"
_LEAST_AXIS = 110  # the paper's favourite, 100, has its place on every axis


def figure_4_chart(result: Figure4) -> Chart:
    """A column a task and a row a way of asking: a thin line as high as the answer was frequent, a
    broad grey one behind it as high as that number was right. Answers beyond the axis, and those
    without a number, are counted over the panel.
    """
    frame = frame_of(result)
    tasks = [name for name in COLUMNS if (frame["task"] == name).any()]
    modes = [mode for mode in WAYS if (frame["mode"] == mode).any()]
    last = _axis_end(frame)
    # One scale a column: ways of asking are compared, and the tasks have different numbers of
    # prompts.
    tops = {task: _highest_count(frame[frame["task"] == task], last) for task in tasks}
    rows = [
        [
            _count_panel(
                frame[(frame["task"] == task) & (frame["mode"] == mode)],
                tops[task],
                last,
                tasks,
                modes,
            )
            for task in tasks
        ]
        for mode in modes
    ]
    return draw.figure(
        rows, result.title, result.deviations, spacing=20, between=12, color="shared"
    )


def figure_4_findings(result: Figure4) -> list[str]:
    """The most frequent answer, a sentence a task and way of asking."""
    frame = frame_of(result)
    last = _axis_end(frame)
    return [
        f"{COLUMNS[str(task)]}, {WAYS[str(mode)]}: "
        f"{', '.join(note for note in _count_notes(rows, last) if note)}."
        for (task, mode), rows in frame.groupby(["task", "mode"], sort=False)
    ]


def _highest_count(rows: Frame, last: int) -> int:
    on_axis = (rows["output"] <= last).fillna(False)
    return int(rows.loc[on_axis, ["answers", "right"]].to_numpy().max(initial=1))


def _axis_end(frame: Frame) -> int:
    """Room for half as much again as the greatest right answer: guesses are seldom much greater,
    garbage is.
    """
    # Of a hosted model that answered nothing no right answer is in the table.
    right_numbers = frame.loc[frame["right"] > 0, "output"]
    return max(_LEAST_AXIS, int(1.5 * right_numbers.max()) if len(right_numbers) else 0)


def _count_panel(
    rows: Frame, top: int, last: int, tasks: list[str], modes: list[str]
) -> alt.LayerChart:
    task, mode = str(rows["task"].iloc[0]), str(rows["mode"].iloc[0])
    first, bottom = task == tasks[0], mode == modes[-1]
    way = WAYS[mode]
    on_axis = rows[(rows["output"] <= last).fillna(False)]
    data = on_axis[["output", "answers", "right"]].astype(int).assign(way=way, key=_RIGHT_KEY)
    names = [_RIGHT_KEY, *LINES]
    x = axes.length_axis(
        pd.Series([0, last]), "answer" if bottom else None, "output", 4, log=False, labels=bottom
    )
    scale = alt.Scale(
        domain=[0, 1.15 * top], nice=False
    )  # no label above the frame, which would push the title up
    axis = alt.Axis(format="d", values=axes.whole_ticks(0, top, 4), minExtent=_EXTENT)
    marks = [
        draw.rows(data)
        .transform_filter(f"datum.{count} > 0")
        .mark_rule(strokeWidth=width)
        .encode(
            x=x,
            y=alt.Y(f"{count}:Q", title="frequency" if first else None, scale=scale, axis=axis),
            y2=alt.datum(0),
            color=draw.hue(hue, names, columns=4, symbolStrokeWidth=4),
            tooltip=draw.tooltips(data),
        )
        for count, hue, width in (("right", "key", 4), ("answers", "way", 1.6))
    ]
    name, notes = COLUMNS[task] if mode == modes[0] else " ", _count_notes(rows, last)
    return draw.panel(marks, _COUNT_WIDTH, _COUNT_HEIGHT, name, *notes, **draw.BOLD | {"offset": 4})


def _count_notes(rows: Frame, last: int) -> list[str]:
    """The most frequent answer, and what the panel cannot show."""
    total = int(rows["answers"].sum())
    numbers = rows[rows["output"].notna() & (rows["answers"] > 0)]
    if numbers.empty:
        return [f"{total} answers, none with a number", ""]
    most = numbers["answers"].max()
    ties = numbers[numbers["answers"] == most]["output"]
    favourite = f"most often {number(float(ties.iloc[0]))}: {most} of {total}"
    if len(ties) > 1:
        favourite = f"{len(ties)} answers most often: {most} of {total} each"
    beyond, none = numbers[numbers["output"] > last], total - int(numbers["answers"].sum())
    off_axis = []
    if len(beyond):
        off_axis.append(
            f"{int(beyond['answers'].sum())} beyond (to {number(float(beyond['output'].max()))})"
        )
    off_axis += [f"{none} no number"] if none else []
    return [favourite, ", ".join(off_axis)]
