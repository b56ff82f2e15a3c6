"""Answers against length: how often they are right, which numbers they are, and where they are
lost.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import pandas as pd

from ostools.ground import title_of
from ostools.measure import AnswerDifference, Decodability, Evaluation, FailureStage
from ostools.measure.answers.reading import CUT_OFF, SOMETHING_ELSE, digits_in
from ostools.measure.probes.failure_stage import NOT_READ, READ, UNDECODABLE
from ostools.measure.probes.scores import TESTS
from ostools.mitigations.named import NONE
from ostools.reporting.findings import present
from ostools.reporting.findings.answers import (
    constant_answer,
    constant_words,
    evaluation_notes,
    task_of,
)
from ostools.reporting.forms import BAND, SQUARE, Encoding, Marks, bars, curve, looks_by_name
from ostools.reporting.style import axes, draw, theme
from ostools.results import Chart, Column, Frame, Looks, frame_of

RIGHT, OTHER_WORDS, WRONG = "right", "right, in other words", "wrong"
NOTHING_CAME = "nothing came"
OUTCOMES = (RIGHT, OTHER_WORDS, WRONG, SOMETHING_ELSE, CUT_OFF, NOTHING_CAME)
"""What a prompt can lead to: the right answer, the right digits in other words, a wrong answer, no
answer, or a cut before the answer; from a hosted model, nothing at all."""


def answer_outcomes(frame: Frame) -> Column:
    """One of `OUTCOMES` for each row, from the columns correct, kind, answer and key.

    Of what is copied: digits are compared as they are written, "00" is not "0".
    """
    correct = frame["correct"].astype("boolean").fillna(False).astype(bool)
    digits: Column = frame["answer"].map(digits_in, na_action="ignore")
    outcome = correct.map({True: RIGHT, False: WRONG}).mask(
        ~correct & (digits == frame["key"]), OTHER_WORDS
    )
    for kind in (SOMETHING_ELSE, CUT_OFF):
        outcome = outcome.mask(frame["kind"] == kind, kind)
    return outcome.mask(frame["correct"].isna(), NOTHING_CAME)


def length_axis(lengths: Column, title: str | None, **axis: Any) -> alt.X:
    """A linear axis of lengths, with room at both ends."""
    return axes.length_axis(lengths, title, padding=8, log=False, **axis)


def training_end(trained: int | None, lengths: Column, height: float | int | None) -> Marks:
    """A dotted line where training ends, if that is inside the axis; with its words at `height`
    pixels, if any.
    """
    if trained is None or not int(lengths.min()) <= trained < int(lengths.max()):
        return []
    return draw.line_at(
        "x",
        "length",
        trained,
        colour=_GREY,
        dash=[1, 2],
        words=f"trained to {trained}",
        height=height,
    )


def error_axis(largest: int, top: float | int) -> Looks:
    """An axis from 0 to `top`, linear to 1 and logarithmic from there, with round numbers up to the
    largest error.
    """
    powers = len(str(largest))
    ticks = [10**power for power in range(0, powers, 1 + powers // 5)]
    if powers <= 3:
        ticks = [tick for tick in axes.round_numbers() if tick <= 2 * largest]
    return {
        "title": "absolute error",
        "scale": alt.Scale(type="symlog", domain=[0, top], nice=False, padding=6),
        "axis": alt.Axis(values=[0, *ticks], format=",d" if powers < 6 else ".0e"),
    }


_WIDTH, _HEIGHT, _ANSWERS_HEIGHT = 520, 200, 280
_ACCURACY, _PROBABILITY = "share of answers that are right", "probability of the right answer line"
_RIGHT_NUMBER, _WRONG_NUMBER = "right", "wrong number"
_BEYOND = "wrong number beyond the axis (at the top edge)"
_NO_NUMBER = {kind: f"no number: {kind} (at the top edge)" for kind in (SOMETHING_ELSE, CUT_OFF)}
_ANSWER_LOOKS = {
    _RIGHT_NUMBER: ("right", "circle"),
    _WRONG_NUMBER: ("wrong", "cross"),
    _NO_NUMBER[SOMETHING_ELSE]: (SOMETHING_ELSE, "triangle-down"),
    _NO_NUMBER[CUT_OFF]: (CUT_OFF, "triangle-right"),
    _BEYOND: ("wrong", "triangle-up"),
}
_ITEMS, _GREY = "sequence length (items)", theme.colour("float64")


def evaluation_chart(result: Evaluation) -> Chart:
    """Above, where the answer is a number: the answers against the right ones, larger where there
    are several of one, and the diagonal, where they are right (the paper's Figure 4). Below, or
    alone: accuracy with its 95% interval, where there is one, and the probability of the right
    line; dotted what one answer to every prompt reaches. A dotted line stands where training ends.
    """
    questions = frame_of(result)  # of a hosted model every question, with an answer or without
    frame = questions[questions["correct"].notna()]
    mitigation, end = questions["mitigation"].iloc[0], _training_end(result)
    notes = [*evaluation_notes(result), *present(constant_words(result))]
    panels = [[_share_panel(result, end)]]
    if frame["absolute_error"].notna().any():
        panels.insert(0, [_answers_panel(frame, end)])
        notes.insert(0, "On the diagonal an answer is right; larger: more answers.")
    condition = "" if mitigation == "none" else f", under {mitigation}"
    title = f"{task_of(result)}: answers of {title_of(result.provenance.model)}{condition}"
    scales = dict.fromkeys(("color", "shape", "size", "strokeDash"), "independent")
    return draw.figure(panels, title, notes, between=14, **scales)


def _training_end(result: Evaluation) -> int | None:
    """The longest length that the model's card lists for this task, where the table has lengths on
    both sides of it.
    """
    within = frame_of(result)["within_training"].dropna()
    return result.provenance.parameters["trained_length"] if within.nunique() == 2 else None


_SHARES = {"accuracy": "value", "wilson_low": "low", "wilson_high": "high"}


def _share_panel(result: Evaluation, end: int | None) -> alt.LayerChart:
    summary: Frame = result.summary
    tables = {_ACCURACY: summary}
    if summary["probability"].notna().any():
        tables[_PROBABILITY] = summary[["length"]].assign(accuracy=summary["probability"])
    # One question a length is no share: points that stand at 0 and 1, and no line between them.
    width = 1.5 if summary["asked"].max() > 1 else 0
    marks, _ = _two_curves(tables, length_axis(summary["length"], _ITEMS), width)
    if constant_words(result):
        marks += draw.line_at("y", "value", _constant_share(result), colour=_GREY, dash=[1, 2])
    marks += training_end(end, summary["length"], 0.62 * _HEIGHT)
    return draw.panel(marks, _WIDTH, _HEIGHT)


def _answers_panel(frame: Frame, end: int | None) -> alt.LayerChart:
    """The answers against the right ones, and the diagonal. What lies beyond twice the largest
    right answer, and what holds no number, stands at the top edge."""
    right, number = frame["key"].map(int), frame["number"]
    beyond = (number > 2 * max(int(right.max()), 1)).fillna(False)
    names = frame["correct"].map({True: _RIGHT_NUMBER, False: _WRONG_NUMBER}).mask(beyond, _BEYOND)
    names = names.where(number.notna(), frame["kind"].map(_NO_NUMBER))
    top = 1.08 * max(right.max(), number[~beyond].max() if number[~beyond].notna().any() else 0)
    heights = number.where(~beyond).astype("Float64").fillna(top).astype(float)
    words = [theme.short_word(text, 60) for text in frame["answer"]]
    points = pd.DataFrame({"key": right, "shown": heights, "outcome": names, "answer": words})
    grouped: Frame = points.groupby(["key", "shown", "outcome"], as_index=False)
    points = grouped.agg(answers=("answer", "size"), answer=("answer", "first"))
    is_length = bool((right == frame["length"]).all())
    title = "right answer (the sequence length, items)" if is_length else "right answer"
    places: Looks = {
        "x": axes.length_axis(right, title, "key", 8, log=False),
        "y": alt.Y("shown:Q", **axes.linear("answer", (0, top), 6, format="d")),
    }
    ends = [int(right.min()), int(right.max())]
    line = draw.rows(pd.DataFrame({"key": ends, "shown": ends}))
    diagonal = line.mark_line(strokeWidth=1.1, strokeDash=[4, 3], color=_GREY).encode(**places)
    looks = {name: look for name, look in _ANSWER_LOOKS.items() if (names == name).any()}
    most = max(int(points["answers"].max()), 2)
    size = alt.Size("answers:Q", scale=alt.Scale(domain=[1, most], range=[26, 190]), legend=None)
    places |= looks_by_name("outcome", looks, columns=2, symbolSize=60) | {"size": size}
    marks = draw.rows(points).mark_point(filled=True, strokeWidth=1.1, opacity=0.85)
    marks = marks.encode(tooltip=draw.tooltips(points), **places)
    lines = training_end(end, frame["length"], None) if is_length else []
    return draw.panel([diagonal, marks, *lines], _WIDTH, _ANSWERS_HEIGHT)


def _two_curves(
    tables: Mapping[str, Frame], x: alt.X, width: float | int = 1.5
) -> tuple[Marks, Encoding]:
    """The marks of the share of right answers by length, a line a table with its Wilson intervals
    where it has some; and the colours of the tables' names, of which there are at most two.
    """
    parts = [table.reindex(columns=["length", *_SHARES]) for table in tables.values()]
    rows: Frame = pd.concat(parts, keys=map(theme.inert, tables), names=["series"])
    rows = rows.rename(columns=_SHARES).reset_index("series").dropna(subset="value")
    rows = rows.dropna(axis="columns", how="all")
    names = zip(map(theme.inert, tables), ("full", "frozen"), strict=False)
    hue = draw.hue("series", dict(names), columns=2, symbolType="circle", symbolSize=60)
    return curve(rows, x, axes.share("share"), hue, bands=[BAND], points=28, width=width), hue


def difference_chart(result: AnswerDifference) -> Chart:
    """The share of right answers of both by length."""
    tables = {str(side): rows for side, rows in result.curves.groupby("side", sort=False)}
    marks, _ = _two_curves(tables, axes.length_axis(result.curves["length"], _ITEMS))
    title = f"{result.provenance.parameters['task']}: {' and '.join(tables)}"
    notes = [*result.findings()[:1]]
    curves: Frame = result.curves
    if curves["wilson_low"].notna().any():
        notes.append("Bands: Wilson's 95% intervals by length.")
    return draw.figure([[draw.panel(marks, _WIDTH, _HEIGHT)]], title, notes)


def right_chart(results: Sequence[Evaluation], width: int, height: int) -> Chart:
    """The share of right answers by length, a line a task, of at most two. Dotted: the share of
    prompts on which one and the same answer is right."""
    tables = {task_of(result): result.summary for result in results}
    lengths = pd.concat([table["length"] for table in tables.values()])
    marks, hue = _two_curves(tables, axes.length_axis(lengths, "items of the sequence"))
    shares = pd.DataFrame(
        {"series": map(theme.inert, tables), "value": map(_constant_share, results)}
    )
    constant = draw.rows(shares).mark_rule(strokeWidth=1.1, strokeDash=[1, 2])
    constant = constant.encode(y="value:Q", color=hue)
    return draw.panel([constant, *marks], width, height)


def _constant_share(result: Evaluation) -> float:
    """The share of prompts on which one and the same answer is right."""
    _, right, prompts = constant_answer(result)
    return right / prompts


# --- where the answer is lost

_STAGE_WIDTH, _STAGE_HEIGHT, _NARROW = 600, 150, 180
_PLACES = "v^(l), z after attention, y"
_STAGES = {READ: "right", NOT_READ: "full", UNDECODABLE: "wrong"}
_CONTROLS = {"none": "measured", "random weights": "random weights", "shuffled": "shuffled labels"}
_HUES = {"measured": "full", "random weights": "frozen", "shuffled labels": "float64"}
_ALONE = "length alone"


def failure_stage_chart(result: FailureStage) -> Chart:
    """Lengths by verdict: the shares of prompts whose answer is read, decodable and unread, and not
    decodable, a panel a dtype and mitigation. What probes decode at each place is the chart of
    `result.probes`."""
    frame = frame_of(result)
    panels = []
    for (mitigation, dtype), group in frame.groupby(["mitigation", "dtype"], sort=False):
        condition = "" if mitigation == NONE else f", under {theme.inert(str(mitigation))}"
        panels.append([_failure_stage_bars(group, f"{dtype}{condition}")])
    title = f"Where answers are lost: {frame['task'].iloc[0]}"
    return draw.figure(panels, title, result.findings()[:1], between=14, color="independent")


def probe_chart(result: Decodability) -> Chart:
    """The share that linear probes say right, with its 95% interval, at every place in the order of
    the forward pass; beside it the controls, and dashed what the length alone says. A panel per
    dtype and test: tests are never in one line."""
    title = f"What linear probes decode: {frame_of(result)['task'].iloc[0]}"
    notes = result.findings()[:1]
    return draw.figure(_places(result), title, notes, spacing=18, between=14, color="independent")


def _failure_stage_bars(group: Frame, name: str) -> alt.LayerChart:
    rows = group.assign(name=group["length"].astype(str)).melt(
        ["name", "verdict"], list(_STAGES), "series"
    )
    lengths = [str(length) for length in sorted(group["length"])]
    axis = axes.names(lengths, alt.X, axes.LENGTH, labelAngle=0, grid=False)
    value, hue = axes.share("share of prompts"), draw.hue("series", _STAGES, **SQUARE)
    marks = bars(rows.dropna(subset=["value"]), axis, value, hue)
    return draw.panel(marks, _STAGE_WIDTH, _STAGE_HEIGHT, name)


def places_named(frame: Frame) -> list[str]:
    """v^(l) as v0, v1, ...; after the attention of a block z0, z1, ...; what else there is by its
    name.
    """
    short = {"residual": "v", "residual_mid": "z", "embedding": "v"}
    return [
        f"{short[site]}{layer}" if site in short else str(site)
        for site, layer in zip(frame["site"], frame["layer"], strict=True)
    ]


def _places(result: Decodability) -> list[list[draw.Panel]]:
    """A row a dtype, in it a panel a test; what the length alone says is of no dtype."""
    frame = frame_of(result)
    length = frame[frame["site"] == "length"]
    alone = dict(zip(length["test"], length["accuracy"], strict=True))
    depth = result.predictions[["site", "layer", "depth"]].drop_duplicates()
    frame = frame[frame["site"] != "length"].merge(depth, on=["site", "layer"])
    rows = []
    for dtype, group in frame.sort_values("depth", kind="stable").groupby("dtype", sort=False):
        panels = [
            _place_panel(of_test, f"{dtype}, {test}", alone.get(test))
            for test in TESTS
            if len(of_test := group[group["test"] == test])
        ]
        # One legend a row: the panels of a row share their colours.
        rows.append([alt.hconcat(*panels, spacing=18).resolve_scale(color="shared")])
    return rows


def _place_panel(group: Frame, name: str, alone: float | None) -> alt.LayerChart:
    rows = group[["low", "high"]].assign(
        name=places_named(group), series=group["control"].map(_CONTROLS), value=group["accuracy"]
    )
    hue = draw.hue("series", _HUES | ({} if alone is None else {_ALONE: theme.INK}), columns=4)
    axis = axes.names(list(dict.fromkeys(rows["name"])), alt.X, _PLACES, ticks=True)
    value = axes.share("right (held-out prompts)")
    offset = alt.XOffset("series:N", sort=list(_HUES))
    marks = bars(rows, axis, value, hue, intervals=[("low", "high", 1)], offset=offset, size=34)
    if alone is not None:
        level = draw.rows(pd.DataFrame({"value": [alone], "series": [_ALONE]}))
        rule = level.mark_rule(strokeDash=[4, 3]).encode(y=alt.Y("value:Q", **value), color=hue)
        marks.insert(0, rule)
    return draw.panel(marks, _NARROW, _STAGE_HEIGHT, name)
