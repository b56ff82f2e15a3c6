"""Figures 4 and 7 as in the paper: how often each number was the answer, beside how often it was the right one."""

from __future__ import annotations

from typing import Any

import altair as alt

from ostools.experiments.figures.figure4 import Figure4
from ostools.ground.words import number
from ostools.reporting.charts.figures.figure3 import COLUMNS, LINES, WAYS, shown_deviations
from ostools.reporting.look import axes, draw, theme
from ostools.results import Frame, frame_of

WIDTH, HEIGHT = 225, 84
_EXTENT = 24  # of an axis, so that panels stand below each other whatever its numbers are
_RIGHT = "right answers"
_LEAST_AXIS = 110  # the paper's favourite, 100, has its place on every axis


def figure_4_chart(result: Figure4) -> Any:
    """A column a task and a row a way of asking: a thin line as high as the answer was frequent, a broad grey one behind it
    as high as that number was right. Answers beyond the axis, and those without a number, are counted over the panel.
    """
    frame = frame_of(result)
    tasks = [name for name in COLUMNS if (frame["task"] == name).any()]
    modes = [mode for mode in WAYS if (frame["mode"] == mode).any()]
    last = _axis_end(frame)
    # One scale a column: ways of asking are compared, and the tasks have different numbers of prompts.
    tops = {task: _top(frame[frame["task"] == task], last) for task in tasks}
    rows = [
        [
            _panel(frame[(frame["task"] == task) & (frame["mode"] == mode)], tops[task], last, tasks, modes)
            for task in tasks
        ]
        for mode in modes
    ]
    notes = shown_deviations(result.deviations)
    return draw.figure(rows, result.title, notes, spacing=20, between=12, color="shared")


def _top(rows: Frame, last: int) -> int:
    shown = (rows["output"] <= last).fillna(False)
    return int(rows.loc[shown, ["answers", "right"]].to_numpy().max(initial=1))


def _axis_end(frame: Frame) -> int:
    """Room for half as much again as the greatest right answer: guesses are seldom much greater, garbage is."""
    # Of a hosted model that answered nothing no right answer is in the table.
    known = frame.loc[frame["right"] > 0, "output"]
    return max(_LEAST_AXIS, int(1.5 * known.max()) if len(known) else 0)


def _panel(rows: Frame, top: int, last: int, tasks: list[str], modes: list[str]) -> Any:
    task, mode = str(rows["task"].iloc[0]), str(rows["mode"].iloc[0])
    first, bottom = task == tasks[0], mode == modes[-1]
    way = WAYS[mode]
    shown = rows[(rows["output"] <= last).fillna(False)]
    data = shown[["output", "answers", "right"]].astype(int).assign(way=way, key=_RIGHT)
    names = [_RIGHT, *LINES]
    colours = dict(zip(names, theme.colours(names), strict=True))
    hues = {name: draw.hue(name, colours, columns=4, symbolStrokeWidth=4) for name in ("key", "way")}
    base = draw.rows(data)
    x = alt.X(
        "output:Q",
        title="answer" if bottom else None,
        scale=alt.Scale(domain=[0, last], nice=False, padding=4),
        axis=alt.Axis(grid=False, format="d", tickCount=6, labels=bottom),
    )
    scale = alt.Scale(domain=[0, 1.15 * top], nice=False)  # no label above the frame, which would push the title up
    axis = alt.Axis(format="d", values=axes.whole_ticks(0, top, 4), minExtent=_EXTENT)
    y = {
        name: alt.Y(f"{name}:Q", title="frequency" if first else None, scale=scale, axis=axis)
        for name in ("answers", "right")
    }
    tooltip = ["output:Q", "answers:Q", "right:Q"]
    known = base.transform_filter("datum.right > 0").mark_rule(strokeWidth=4)
    given = base.transform_filter("datum.answers > 0").mark_rule(strokeWidth=1.6)
    layered: Any = alt.layer(
        known.encode(x=x, y=y["right"], y2=alt.datum(0), color=hues["key"]),
        given.encode(x=x, y=y["answers"], y2=alt.datum(0), color=hues["way"], tooltip=tooltip),
    )
    name = COLUMNS[task] if mode == modes[0] else " "
    looks: dict[str, Any] = {"fontSize": 12, "fontWeight": "bold", "offset": 4}
    return layered.properties(width=WIDTH, height=HEIGHT, title=draw.heading(name, _told(rows, last), **looks))


def _told(rows: Frame, last: int) -> list[str]:
    """The most frequent answer, and what the panel cannot show."""
    asked = int(rows["answers"].sum())
    numbers = rows[rows["output"].notna() & (rows["answers"] > 0)]
    beyond = numbers[numbers["output"] > last]
    none = asked - int(numbers["answers"].sum())
    if numbers.empty:
        return [f"{asked} answers, none with a number", ""]
    most = numbers["answers"].max()
    ties = numbers[numbers["answers"] == most]["output"]
    favourite = (
        f"most often {number(float(ties.iloc[0]))}: {most} of {asked}"
        if len(ties) == 1
        else f"{len(ties)} answers most often: {most} of {asked} each"
    )
    rest = (
        [f"{int(beyond['answers'].sum())} beyond (to {number(float(beyond['output'].max()))})"] if len(beyond) else []
    )
    rest += [f"{none} no number"] if none else []
    return [favourite, ", ".join(rest)]
