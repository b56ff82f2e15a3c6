"""Figures 3 and 6 as in the paper: absolute error against sequence length, a column a task and a line a way of asking."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from ostools.experiments.figures.figure3 import Figure3
from ostools.reporting.charts.answers.errors import error_axis
from ostools.reporting.forms.curve import curve
from ostools.reporting.look import draw, theme
from ostools.reporting.look.answer_marks import length_axis, training_end
from ostools.results import Frame, frame_of

WIDTH, HEIGHT, STRIP = 210, 190, 42
COLUMNS = {
    "sum-ones": "sum 1+…+1",
    "count-ones": "count ones, all ones",
    "count-ones-bernoulli": "count ones, p(1) = 0.7",
    "count-word": "count ‘car’ in a sentence",
}
"""The paper's columns: the task and what its panel is called."""
WAYS = {"none": "no CoT", "answer-only": "no CoT", "cot-zero-shot": "CoT zero-shot", "cot-few-shot": "CoT few-shot"}
LINES = tuple(dict.fromkeys(WAYS.values()))
"""A figure has one form without chain of thought, and says which."""
"""The paper's lines: the mode of a task, and what the legend calls it."""
_FAR = 20
"""Errors over this many times the longest sequence would leave the others too little room on a linear axis."""


def figure_3_chart(result: Figure3) -> Any:
    """Above: the mean absolute error of the answers that are numbers, with bars from the least to the greatest seed. Below:
    where an answer held no number, darker the more seeds gave none. A dotted line stands where the model's training ends.
    """
    frame = frame_of(result)
    drawn = _summary(frame)
    largest = int(drawn["high"].max()) if drawn["high"].notna().any() else 1
    wide = largest > _FAR * int(frame["length"].max())
    trained = result.provenance.model.get("trained_lengths") or {}
    tasks = [name for name in COLUMNS if (frame["task"] == name).any()]
    panels = [
        alt.vconcat(
            _errors(drawn[drawn["task"] == name], max(largest, 1), wide, trained.get(name), index == 0),
            _strip(drawn[drawn["task"] == name], trained.get(name), index == 0),
            spacing=8,
        )
        for index, name in enumerate(tasks)
    ]
    notes = [*shown_deviations(result.deviations), *_notes(drawn, wide)]
    return draw.figure([panels], result.title, notes, spacing=20, color="shared")


def _summary(frame: Frame) -> Frame:
    """Mean, least and greatest error over seeds, and how many of the answers held no number."""
    keys = ["task", "mode", "length"]
    # Of a hosted model some answers may never have come: a line breaks there, too.
    found = frame.assign(
        came=frame["correct"].notna(), error=frame["absolute_error"].astype("Float64").astype(float)
    ).groupby(keys, as_index=False)
    table = found.agg(
        mean=("error", "mean"),
        low=("error", "min"),
        high=("error", "max"),
        asked=("came", "sum"),
        read=("error", "count"),
    )
    return table.assign(series=table["mode"].map(WAYS), none=table["asked"] - table["read"])


def _notes(drawn: Frame, wide: bool) -> list[str]:
    """How to read the marks, in one line."""
    notes = []
    if (drawn["asked"] > 1).any():
        notes.append(
            f"Line: mean of up to {drawn['asked'].max()} seeds (answers that are numbers); bars: least to greatest."
        )
    if drawn["none"].any():
        counted = f"{drawn['none'].sum()} of {drawn['asked'].sum()}"
        notes.append(f"Ticks below: answers without a number ({counted}), which the errors leave out.")
    if wide:
        notes.append("Error axis: linear to 1, then logarithmic. The paper's text does not name one.")
    lines = [" ".join(notes[:2]), *notes[2:]]
    return [line for line in lines if line]


def _hue() -> alt.Color:
    return draw.hue("series", {name: theme.colour(name) for name in LINES}, columns=3, symbolStrokeWidth=3)


def _errors(rows: Frame, largest: int, wide: bool, end: int | None, first: bool) -> Any:
    """Means with bars from least to greatest; where errors lie far apart, on an axis that is logarithmic from 1 on."""
    data = rows[["length", "series", "low", "high", "asked", "read"]].assign(value=rows["mean"])
    x = length_axis(rows["length"], None, labels=False)
    y = {"title": "absolute error", "scale": alt.Scale(domain=[0, largest * 1.12], nice=False, padding=4)}
    y = error_axis(largest, largest * 5) if wide else y | {"axis": alt.Axis()}
    y = y if first else draw.quiet(y)
    several = draw.rows(data[data["high"] > data["low"]]).mark_rule(strokeWidth=1)
    marks = [several.encode(x=x, y=alt.Y("low:Q", **y), y2="high:Q", color=_hue())]
    told = ["length:Q", "series:N", "low:Q", "high:Q", "read:Q", "asked:Q"]
    marks += curve(data, x, y, _hue(), points=22, tooltip=told)
    title = draw.heading(COLUMNS[str(rows["task"].iloc[0])], fontSize=12, fontWeight="bold")
    return draw.layers(*marks, *training_end(end, rows["length"], 6), width=WIDTH, height=HEIGHT, title=title)


def _strip(rows: Frame, end: int | None, first: bool) -> Any:
    """A row a way of asking: ticks where answers held no number."""
    data = rows[["length", "series", "none", "asked"]].assign(share=(rows["none"] / rows["asked"]).fillna(0))
    names = [name for name in LINES if (rows["series"] == name).any()]
    base = draw.rows(data)
    axis = alt.Axis(labels=False, ticks=False, domain=False, grid=True, bandPosition=0.5)
    y = alt.Y("series:N", title=["no", "number"] if first else None, scale=alt.Scale(domain=names), axis=axis)
    opacity = alt.Opacity("share:Q", scale=alt.Scale(domain=[0, 1], range=[0, 1]), legend=None)
    tooltip = ["length:Q", "series:N", "none:Q", "asked:Q"]
    ticks = base.mark_tick(thickness=2, size=STRIP / 4).encode(
        x=length_axis(rows["length"], "sequence length (items)"), y=y, color=_hue(), opacity=opacity, tooltip=tooltip
    )
    return draw.layers(ticks, *training_end(end, rows["length"], None), width=WIDTH, height=STRIP)


def shown_deviations(said: Sequence[str]) -> list[str]:
    """A line: the first of a result's `deviations`, which says what was run, and how many more there are."""
    first, *more = said
    if not more:
        return [first]
    return [f"{first} `deviations` has {len(more)} more note{'s' * (len(more) > 1)} on how it differs."]
