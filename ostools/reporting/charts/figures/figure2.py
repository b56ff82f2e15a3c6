"""Figure 2 as in the paper: right or wrong against sequence length, a diamond for the last digit and a square for the first."""

from __future__ import annotations

from typing import Any

import altair as alt

from ostools.experiments.figures.figure2 import Figure2
from ostools.measure.answers.reading import CUT_OFF, SOMETHING_ELSE
from ostools.reporting.forms.bars import names
from ostools.reporting.forms.table import by_name, marked
from ostools.reporting.look import draw, theme
from ostools.reporting.look.answer_marks import (
    NOTHING_CAME,
    OTHER_WORDS,
    OUTCOMES,
    RIGHT,
    WRONG,
    length_axis,
    outcomes,
    training_end,
)
from ostools.results import Frame, frame_of

WIDTH, ROW = 270, 44
_TITLES = {"a": "(a) 1…10 and 01…1", "b": "(b) the same, with the hint", "c": "(c) 0s and 1s in turn"}
_MARKS = {"copy-last": ("last digit", "diamond"), "copy-first": ("first digit", "square")}
_PLACES = [words for words, _ in _MARKS.values()]


def figure_2_chart(result: Figure2) -> Any:
    """Three panels side by side; the rows are the outcomes that occurred, right and wrong always among them. A dotted line
    stands where the model's training ends.
    """
    frame = frame_of(result)
    frame = frame.assign(outcome=outcomes(frame))
    rows = [name for name in OUTCOMES if name in (RIGHT, WRONG) or (frame["outcome"] == name).any()]
    trained = result.provenance.model.get("trained_lengths") or {}
    end = min((trained[name] for name in _MARKS if name in trained), default=None)
    panels = [_panel(group, rows, end, index == 0) for index, (_, group) in enumerate(frame.groupby("panel"))]
    return draw.figure([panels], result.title, list(result.deviations), spacing=26)


def _panel(group: Frame, rows: list[str], end: int | None, first: bool) -> Any:
    known = [name for name in _MARKS if (group["task"] == name).any()]
    answers = [theme.shown(text, 60) for text in group["answer"].fillna(NOTHING_CAME)]
    places = group["task"].map(lambda name: _MARKS[name][0])
    data = group[["length", "key", "outcome"]].assign(answer=answers, place=places)
    legend = alt.Legend(
        title=None, columns=2, symbolType=alt.Undefined, symbolSize=70, symbolStrokeColor=theme.colour("float64")
    )
    looks = by_name("place", {words: (task, shape) for task, (words, shape) in _MARKS.items()}, legend)
    looks["yOffset"] = alt.YOffset("place:N", scale=alt.Scale(domain=_PLACES, paddingOuter=0.6))
    row = names(rows, field="outcome", grid=True, labels=first, domain=False, bandPosition=0.5)
    column = length_axis(group["length"], "sequence length (digits)")
    points = marked(data, column, row, looks, ["length:Q", "place:N", "key:N", "answer:N", "outcome:N"])
    told = [_told(group[group["task"] == name], _MARKS[name][0]) for name in known]
    heading = draw.heading(_TITLES[str(group["panel"].iloc[0])], told, fontSize=12, fontWeight="bold")
    marks = [points, *training_end(end, group["length"], ROW)]
    return draw.layers(*marks, width=WIDTH, height=ROW * len(rows), title=heading)


def _told(group: Frame, place: str) -> str:
    """Right is the line that was asked for; what else was said stands after it."""
    counts = {kind: int((group["outcome"] == kind).sum()) for kind in OUTCOMES}
    names = {OTHER_WORDS: "in other words", SOMETHING_ELSE: SOMETHING_ELSE, CUT_OFF: CUT_OFF}
    others = [f"{counts[kind]} {words}" for kind, words in names.items() if counts[kind]]
    return ", ".join([f"{place} right at {counts[RIGHT]} of {len(group) - counts[NOTHING_CAME]}", *others])
