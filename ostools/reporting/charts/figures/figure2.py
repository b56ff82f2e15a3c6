"""Figure 2 as in the paper: right or wrong against sequence length, a diamond for the last digit and a square for the first."""

from __future__ import annotations

from typing import Any

import altair as alt

from ostools.experiments.figures.figure2 import Figure2
from ostools.measure.answers.reading import CUT_OFF, SOMETHING_ELSE
from ostools.reporting.look import axes, draw, theme
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


def figure_2_chart(result: Figure2) -> alt.HConcatChart:
    """Three panels side by side; the rows are the outcomes that occurred, right and wrong always among them. A dotted line
    stands where the model's training ends.
    """
    frame = frame_of(result)
    frame = frame.assign(outcome=outcomes(frame))
    rows = [name for name in OUTCOMES if name in (RIGHT, WRONG) or (frame["outcome"] == name).any()]
    trained = result.provenance.model.get("trained_lengths") or {}
    end = min((trained[name] for name in _MARKS if name in trained), default=None)
    panels = [_panel(group, rows, end, index == 0) for index, (_, group) in enumerate(frame.groupby("panel"))]
    title = alt.TitleParams(result.title, subtitle=list(result.deviations))
    return axes.themed(alt.hconcat(*panels, title=title, spacing=26))


def _panel(group: Frame, rows: list[str], end: int | None, first: bool) -> Any:
    known = [name for name in _MARKS if (group["task"] == name).any()]
    data = group[["length", "key", "answer"]].assign(
        place=group["task"].map(lambda name: _MARKS[name][0]), outcome=group["outcome"]
    )
    data["answer"] = [theme.shown(text, 60) for text in data["answer"].fillna(NOTHING_CAME)]
    names, shapes = zip(*_MARKS.values(), strict=True)
    legend = alt.Legend(
        title=None, columns=2, symbolType=alt.Undefined, symbolSize=70, symbolStrokeColor=theme.colour("float64")
    )
    scale = alt.Scale(domain=list(names), range=[theme.colour(name) for name in _MARKS])
    base: Any = draw.rows(data)
    points = base.mark_point(filled=True, size=34).encode(
        x=length_axis(group["length"], "sequence length (digits)"),
        y=alt.Y(
            "outcome:N",
            title=None,
            scale=alt.Scale(domain=rows),
            axis=alt.Axis(grid=True, labels=first, ticks=False, domain=False, labelLimit=0, bandPosition=0.5),
        ),
        yOffset=alt.YOffset("place:N", scale=alt.Scale(domain=list(names), paddingOuter=0.6)),
        shape=alt.Shape("place:N", scale=alt.Scale(domain=list(names), range=list(shapes)), legend=legend),
        color=alt.Color("place:N", scale=scale, legend=legend),
        tooltip=["length:Q", "place:N", "key:N", "answer:N", "outcome:N"],
    )
    layered: Any = alt.layer(points, *training_end(end, group["length"], ROW))
    told = [_told(group[group["task"] == name], _MARKS[name][0]) for name in known]
    heading = alt.TitleParams(
        _TITLES[str(group["panel"].iloc[0])], subtitle=told, fontSize=12, subtitleFontSize=10, offset=6, frame="group"
    )
    return layered.properties(width=WIDTH, height=ROW * len(rows), title=heading)


def _told(group: Frame, place: str) -> str:
    """Right is the line that was asked for; what else was said stands after it."""
    counts = {kind: int((group["outcome"] == kind).sum()) for kind in OUTCOMES}
    names = {OTHER_WORDS: "in other words", SOMETHING_ELSE: SOMETHING_ELSE, CUT_OFF: CUT_OFF}
    others = [f"{counts[kind]} {words}" for kind, words in names.items() if counts[kind]]
    return ", ".join([f"{place} right at {counts[RIGHT]} of {len(group) - counts[NOTHING_CAME]}", *others])
