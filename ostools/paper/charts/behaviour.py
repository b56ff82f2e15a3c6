"""Figures 2, 3, 4, 6 and 7 as in the paper, and the paper's claims on one model."""

import altair as alt
import pandas as pd

from ostools.ground import number, title_of
from ostools.paper.behaviour import CUT_OFF, SOMETHING_ELSE, Figure2, Figure3, Figure4
from ostools.paper.claims import claim
from ostools.reporting.charts.answers import (
    NOTHING_CAME,
    OTHER_WORDS,
    RIGHT,
    WRONG,
    answer_outcomes,
    error_axis,
    length_axis,
    training_end,
)
from ostools.reporting.findings import MOST
from ostools.reporting.forms import SQUARE, bars, curve, looks_by_name, mark_cells, rules
from ostools.reporting.style import axes, draw, theme
from ostools.results import Chart, Frame, frame_of

_CLAIMS_WIDTH, _CLAIM_HEIGHT = 460, 19
_CLAIM_LOOKS = {
    claim.AGREES: ("right", "circle"),
    claim.BY_CONSTRUCTION: ("no answer", "cross"),
    claim.DISAGREES: ("wrong", "diamond"),
    claim.UNTESTED: ("no answer", "square"),
}


def claims_chart(result: claim.Reproduction) -> Chart:
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


def reproduction_findings(result: claim.Reproduction) -> list[str]:
    """How many claims have which outcome; then each claim that does not agree, with what was
    measured.
    """
    frame = frame_of(result)
    counts = ", ".join(f"{name}: {count}" for name, count in result.outcomes.items())
    differing = frame[frame["outcome"] == claim.DISAGREES].head(MOST - 1).to_dict("records")
    return [
        f"{counts}.",
        *(f"{row['claim']} ({row['place']}): {row['measured']}" for row in differing),
    ]


_COPY_WIDTH, _COPY_ROW = 560, 26
_PANELS = {"a": "(a) as it stands", "b": "(b) with the hint", "c": "(c) 0s and 1s in turn"}
_DIGITS = {"copy-last": "last digit", "copy-first": "first digit"}
_OUTCOME_LOOKS = {
    RIGHT: ("right", "circle"),
    OTHER_WORDS: ("right", "square"),
    WRONG: ("wrong", "cross"),
    SOMETHING_ELSE: (SOMETHING_ELSE, "triangle-down"),
    CUT_OFF: (CUT_OFF, "triangle-right"),
    NOTHING_CAME: ("no answer", "diamond"),
}


def figure_2_chart(result: Figure2) -> Chart:
    """A row a panel of the paper and digit that is asked for; colour and shape are the outcome. A
    dotted line stands where the model's training ends.
    """
    frame = _with_outcomes(result)
    frame["answer"] = [theme.short_word(text, 60) for text in frame["answer"].fillna(NOTHING_CAME)]
    trained = result.provenance.model.get("trained_lengths") or {}
    end = min((trained[name] for name in _DIGITS if name in trained), default=None)
    occurred = {name: look for name, look in _OUTCOME_LOOKS.items() if name in {*frame["outcome"]}}
    names, lengths = list(dict.fromkeys(frame["name"])), frame["length"]
    cells = mark_cells(
        frame[["length", "key", "outcome", "answer", "name"]],
        length_axis(lengths, "sequence length (digits)"),
        axes.names(names, grid=True, domain=False),
        looks_by_name("outcome", occurred, columns=3, symbolSize=60),
        60,
    )
    height = _COPY_ROW * len(names)
    panel = draw.panel([cells, *training_end(end, lengths, 8)], _COPY_WIDTH, height)
    return draw.figure([[panel]], result.title, figure_2_findings(result))


def figure_2_findings(result: Figure2) -> list[str]:
    """How often each digit came out how, the most frequent first; then how the figure was made."""
    counts = _with_outcomes(result).groupby("name", sort=False)["outcome"].value_counts()
    words = counts.astype(str) + " " + counts.index.get_level_values("outcome")
    by_name = words.groupby("name", sort=False)
    sentences = [f"{name}: {', '.join(rows)}." for name, rows in by_name]
    return [" ".join(sentences), *result.deviations]


def _with_outcomes(result: Figure2) -> Frame:
    """The rows with their outcome and the name of their panel and digit, panel by panel."""
    frame = frame_of(result).sort_values("panel", kind="stable")
    names = frame["panel"].map(_PANELS) + ", " + frame["task"].map(_DIGITS)
    return frame.assign(outcome=answer_outcomes(frame), name=names)


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
    largest = max(int(summary["high"].fillna(0).max()), 1)
    wide = largest > _FAR * int(frame["length"].max())
    axis = axes.linear("absolute error", (0, largest * 1.12), 4)
    axis = error_axis(largest, largest * 5) if wide else axis
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
    notes = [
        *result.deviations,
        f"Line: mean of up to {summary['asked'].max()} seeds; bars: least to greatest. There are "
        f"answers without a number ({(summary['asked'] - summary['read']).sum()} of "
        f"{summary['asked'].sum()}), which the errors leave out.",
        *["Error axis: linear to 1, then logarithmic. The paper's text does not name one."] * wide,
    ]
    return draw.figure([panels], result.title, notes, spacing=20, color="shared")


def figure_3_findings(result: Figure3) -> list[str]:
    """How many answers are numbers, and their mean absolute error, by task and way of asking; then
    how the figure was made.
    """
    groups = _error_summary(frame_of(result)).groupby(["task", "series"], sort=False)
    sentences = [
        f"{COLUMNS[str(task)]}, {series}: {rows['read'].sum()} of {rows['asked'].sum()} answers "
        f"are numbers; their mean absolute error is {number(float(rows['mean'].mean()))} over "
        f"{int((rows['read'] > 0).sum())} lengths."
        for (task, series), rows in groups
    ]
    return [" ".join(sentences), *result.deviations]


def _error_summary(frame: Frame) -> Frame:
    """Mean, least and greatest error over seeds, and how many of the answers held a number."""
    # Of a hosted model some answers may never have come: a line breaks there, too.
    error, came = frame["absolute_error"].astype("Float64").astype(float), frame["correct"].notna()
    rows = frame.assign(came=came, error=error, series=frame["mode"].map(WAYS))
    return rows.groupby(["task", "mode", "series", "length"], as_index=False, sort=False).agg(
        mean=("error", "mean"),
        low=("error", "min"),
        high=("error", "max"),
        asked=("came", "sum"),
        read=("error", "count"),
    )


def _error_panel(rows: Frame, axis: theme.Looks, end: int | None) -> alt.LayerChart:
    """Means with bars from least to greatest, a line a way of asking."""
    data = rows[["length", "series", "low", "high", "asked", "read"]].assign(value=rows["mean"])
    x = length_axis(rows["length"], "sequence length (items)")
    hue = draw.hue("series", LINES, columns=3, symbolStrokeWidth=3)
    marks = rules(data[data["high"] > data["low"]], x, hue, width=1.0)
    marks += curve(data, x, axis, hue, points=22) + training_end(end, rows["length"], 6)
    title = COLUMNS[str(rows["task"].iloc[0])]
    return draw.panel(marks, _ERROR_WIDTH, _ERROR_HEIGHT, title, **draw.BOLD)


_COUNT_WIDTH, _COUNT_HEIGHT = 225, 84
_RIGHT_KEY = "right answers"
_LEAST_AXIS = 110  # the paper's favourite, 100, has its place on every axis


def figure_4_chart(result: Figure4) -> Chart:
    """A row a task and a column a way of asking: a thin line as high as the answer was frequent, a
    broad grey one behind it as high as that number was right. Answers beyond the axis, and those
    without a number, are counted over the panel.
    """
    frame = frame_of(result)
    # Room for half as much again as the greatest right answer: guesses are seldom much greater,
    # garbage is. Of a hosted model that answered nothing no right answer is in the table.
    greatest = frame.loc[frame["right"] > 0, "output"].max()
    last = _LEAST_AXIS if pd.isna(greatest) else max(_LEAST_AXIS, int(1.5 * greatest))
    panels = []
    for _, of_task in frame.groupby("task", sort=False):
        on_axis = of_task.loc[(of_task["output"] <= last).fillna(False), ["answers", "right"]]
        # One scale a task: ways of asking are compared, and tasks have other numbers of prompts.
        top = max(int(on_axis.to_numpy().max(initial=0)), 1)
        of_ways = [rows for _, rows in of_task.groupby("mode", sort=False)]
        panels.append([_count_panel(rows, top, last) for rows in of_ways])
    return draw.figure(
        panels, result.title, result.deviations, spacing=20, between=12, color="shared"
    )


def _count_panel(rows: Frame, top: int, last: int) -> alt.LayerChart:
    on_axis, way = (rows["output"] <= last).fillna(False), WAYS[str(rows["mode"].iloc[0])]
    counts = rows.loc[on_axis, ["output", "answers", "right"]].astype(int)
    x = axes.length_axis(pd.Series([0, last]), "answer", "output", 4, log=False)
    y = axes.linear("frequency", (0, 1.15 * top), format="d", values=axes.whole_ticks(0, top, 4))
    hue = draw.hue("series", [_RIGHT_KEY, *LINES], **SQUARE | {"columns": 4})
    marks = []
    for count, series, width in (("right", _RIGHT_KEY, 4), ("answers", way, 1.6)):
        series_rows = counts.assign(series=series, shown=counts[count])[counts[count] > 0]
        marks += bars(series_rows, x, y, hue, width=width, orient="vertical")
    beyond = rows.loc[rows["output"].notna() & ~on_axis, "answers"].sum()
    none = rows.loc[rows["output"].isna(), "answers"].sum()
    notes = _favourite(rows), f"{beyond} beyond the axis, {none} without a number"
    title = f"{COLUMNS[str(rows['task'].iloc[0])]}, {way}"
    return draw.panel(marks, _COUNT_WIDTH, _COUNT_HEIGHT, title, *notes, **draw.BOLD)


def figure_4_findings(result: Figure4) -> list[str]:
    """The most frequent answer by task and way of asking; then how the figure was made."""
    sentences = [
        f"{COLUMNS[str(task)]}, {WAYS[str(mode)]}: {_favourite(rows)}."
        for (task, mode), rows in frame_of(result).groupby(["task", "mode"], sort=False)
    ]
    return [" ".join(sentences), *result.deviations]


def _favourite(rows: Frame) -> str:
    """The most frequent answer of all that came; of several the smallest three, and how many."""
    numbers = rows[rows["output"].notna()]
    most, came = int(numbers["answers"].max()) if len(numbers) else 0, rows["answers"].sum()
    if not most:
        return f"{came} answers, none with a number"
    favourites = sorted(numbers.loc[numbers["answers"] == most, "output"])
    if most == 1 < len(favourites):
        return f"{came} answers, no number twice"
    words = " and ".join(f"{output:,}" for output in favourites[:3])
    words += f" and {len(favourites) - 3} more as often" * (len(favourites) > 3)
    return f"most often {words}: {most} of {came}"
