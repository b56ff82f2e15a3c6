"""Answers against length: how often they are right, how far off they are, and what Corollary 6.2
predicts for counting.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import pandas as pd

from ostools.ground.words import title_of
from ostools.measure.answers.counting import Counting
from ostools.measure.answers.paired import AnswerDifference
from ostools.measure.answers.reading import CUT_OFF, SOMETHING_ELSE, digits_in
from ostools.measure.answers.result import Evaluation
from ostools.reporting.findings.answers import (
    constant_answer,
    constant_words,
    counting_words,
    evaluation_notes,
    task_of,
)
from ostools.reporting.forms import BAND, curve, log_rows, looks_by_name, rules
from ostools.reporting.style import axes, draw, theme
from ostools.results import Chart, Column, Frame, Row, frame_of

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
    digits: Any = frame["answer"].map(digits_in, na_action="ignore")
    outcome = correct.map({True: RIGHT, False: WRONG}).mask(
        ~correct & (digits == frame["key"]), OTHER_WORDS
    )
    for kind in (SOMETHING_ELSE, CUT_OFF):
        outcome = outcome.mask(frame["kind"] == kind, kind)
    return outcome.mask(frame["correct"].isna(), NOTHING_CAME)


def length_axis(lengths: Column, title: str | None, **axis: Any) -> alt.X:
    """A linear axis of lengths, with room at both ends."""
    return axes.length_axis(lengths, title, padding=8, log=False, **axis)


def training_end(trained: int | None, lengths: Column, height: float | int | None) -> list[Any]:
    """A dotted line where training ends, if that is inside the axis; with its words at `height`
    pixels, if any.
    """
    if trained is None or not int(lengths.min()) <= trained < int(lengths.max()):
        return []
    looks: dict[str, Any] = {"colour": theme.colour("float64"), "dash": [1, 2]}
    return draw.line_at(
        "x", "length", trained, words=f"trained to {trained}", height=height, **looks
    )


NO_NUMBER = {kind: f"no number: {kind} (at the top edge)" for kind in (SOMETHING_ELSE, CUT_OFF)}
"""By the kind of an answer without a number, what a legend calls it."""
NO_NUMBER_LOOKS = {
    NO_NUMBER[SOMETHING_ELSE]: (SOMETHING_ELSE, "triangle-down"),
    NO_NUMBER[CUT_OFF]: (CUT_OFF, "triangle-right"),
}


def largest_error(frame: Frame) -> int:
    """The largest absolute error, at least 1."""
    errors = frame["absolute_error"].dropna()
    return max(1, int(errors.max())) if len(errors) else 1


def error_axis(largest: int, top: float | int, **axis: Any) -> dict[str, Any]:
    """An axis from 0 to `top`, linear to 1 and logarithmic from there, with round numbers up to the
    largest error.
    """
    powers = len(str(largest))
    ticks = [10**power for power in range(0, powers, 1 + powers // 5)]
    if powers <= 3:
        ticks = [tick for tick in axes.round_numbers() if tick <= 2 * largest]
    looks: dict[str, Any] = {"values": [0, *ticks], "format": ",d" if powers < 6 else ".0e"}
    scale = alt.Scale(type="symlog", domain=[0, top], nice=False, padding=6)
    return {"title": "absolute error", "scale": scale, "axis": alt.Axis(**(looks | axis))}


def error_points(
    frame: Frame,
    names: Column,
    x: alt.X,
    largest: int,
    looks: Mapping[str, tuple[str, str]],
    **mark: Any,
) -> Any:
    """A point an answer, above every error where it holds no number.

    names: what the legend calls each. looks: by such a name what the theme calls its colour, and
        its shape.
    """
    top = 2 * largest + 1
    error = frame["absolute_error"].astype("Float64").fillna(float(top)).astype(float)
    answers = [theme.short_word(text, 60) for text in frame["answer"]]
    rows: Frame = frame[["length", "key"]].assign(answer=answers, outcome=names, error=error)
    neutral: dict[str, Any] = (
        {"symbolStrokeColor": theme.colour("float64")} if mark.get("filled") else {}
    )
    marks = looks_by_name(
        "outcome", looks, columns=2, symbolType=alt.Undefined, symbolSize=60, **neutral
    )
    points, y = (
        draw.rows(rows).mark_point(strokeWidth=1.1, **mark),
        alt.Y("error:Q", **error_axis(largest, top)),
    )
    return points.encode(x=x, y=y, tooltip=draw.tooltips(rows), **marks)


_WIDTH, _HEIGHT, _ANSWERS_HEIGHT = 520, 200, 280
_ACCURACY, _PROBABILITY = "share of answers that are right", "probability of the right answer line"
_RIGHT_NUMBER, _WRONG_NUMBER = "right", "wrong number"
_BEYOND = "wrong number beyond the axis (at the top edge)"
_NUMBER_LOOKS = {
    _RIGHT_NUMBER: ("right", "circle"),
    _WRONG_NUMBER: ("wrong", "cross"),
    **NO_NUMBER_LOOKS,
}
_ANSWER_LOOKS = _NUMBER_LOOKS | {_BEYOND: ("wrong", "triangle-up")}
_ITEMS = "sequence length (items)"


def evaluation_chart(result: Evaluation) -> Chart:
    """Above, where the answer is a number: the answers against the right ones, larger where there
    are several of one, and the diagonal, where they are right (the paper's Figure 4). Below, or
    alone: accuracy with its 95% interval, where there is one, and the probability of the right
    line; hollow where a mitigation changed nothing, and dotted what one answer to every prompt
    reaches. A dotted line stands where training ends.
    """
    questions = frame_of(result)  # of a hosted model every question, with an answer or without
    frame = questions[questions["correct"].notna()]
    mitigation, end = questions["mitigation"].iloc[0], _training_end(result)
    numeric = bool(frame["absolute_error"].notna().any())
    panels = [[_answers_panel(frame, end)]] if numeric else []
    panels += [[_share_panel(result, end)]]
    notes = ["On the diagonal an answer is right; larger: more answers."] if numeric else []
    notes += evaluation_notes(result)
    notes += [f"Dotted across: {words}"] if (words := constant_words(result)) else []
    if end is not None and result.provenance.parameters["rewritten"]:
        notes.append("The lengths of training are those of the task without the mitigation.")
    mitigation_words = "" if mitigation == "none" else f", under {mitigation}"
    title = f"{questions['task'].iloc[0]}: answers of {title_of(result.provenance.model)}{mitigation_words}"
    scales = dict.fromkeys(("color", "shape", "size", "strokeDash"), "independent")
    return draw.figure(panels, title, notes, between=14, **scales)


def _training_end(result: Evaluation) -> int | None:
    """The longest length that the model's card lists for this task, where the table has lengths on
    both sides of it.
    """
    within = frame_of(result)["within_training"].dropna()
    return result.provenance.parameters["trained_length"] if within.nunique() == 2 else None


def _share_panel(result: Evaluation, end: int | None) -> Any:
    summary: Frame = result.summary
    likely = summary["probability"].notna().any()
    hue = draw.hue(
        "series", {_ACCURACY: "full"} | ({_PROBABILITY: "probability"} if likely else {})
    )
    x = length_axis(summary["length"], _ITEMS)
    y = axes.share("share, probability")
    columns = {"accuracy": "value", "wilson_low": "low", "wilson_high": "high"}
    accuracy: Frame = summary[["length", "right", "asked", *columns]].rename(columns=columns)
    accuracy = accuracy.assign(series=_ACCURACY).dropna(subset="value")
    has_interval = bool(accuracy["low"].notna().any())
    accuracy = accuracy if has_interval else accuracy.drop(columns=["low", "high"])
    probability = summary[["length", "right", "asked"]].assign(
        value=summary["probability"], series=_PROBABILITY
    )
    marks = curve(accuracy, x, y, hue, bands=[("low", "high", 0.16)], points=28)
    if has_interval and summary["length"].nunique() == 1:
        marks += rules(accuracy, "x", x, "low", "high", color=hue)
    marks += curve(probability.dropna(subset="value"), x, y, hue, strokeDash=[5, 3])
    idle = accuracy[summary["active"].loc[accuracy.index] == 0]
    if (
        len(idle) and frame_of(result)["mitigation"].iloc[0] != "none"
    ):  # hollow where the mitigation changed nothing
        ring = draw.rows(idle[["length", "value", "series"]]).mark_point(
            size=30, shape="circle", fill=theme.LIGHT_GROUND, opacity=1, strokeWidth=1.4
        )
        marks.append(ring.encode(x=x, y=alt.Y("value:Q", **y), color=hue))
    if constant_words(result):
        constant = _constant_share(result)
        marks += draw.line_at("y", "value", constant, colour=theme.colour("float64"), dash=[1, 2])
    marks += training_end(end, summary["length"], 0.62 * _HEIGHT)
    return draw.panel(marks, _WIDTH, _HEIGHT)


def _answers_panel(frame: Frame, end: int | None) -> Any:
    """The answers against the right ones, and the diagonal. What lies beyond twice the largest
    right answer, and what holds no number, stands at the top edge."""
    right, number = frame["key"].map(int), frame["number"]
    beyond = (number > 2 * max(int(right.max()), 1)).fillna(False)
    names = frame["correct"].map({True: _RIGHT_NUMBER, False: _WRONG_NUMBER}).mask(beyond, _BEYOND)
    names = names.where(number.notna(), frame["kind"].map(NO_NUMBER))
    top = 1.08 * max(right.max(), number[~beyond].max() if number[~beyond].notna().any() else 0)
    shown = number.where(~beyond).astype("Float64").fillna(top).astype(float)
    words = [theme.short_word(text, 60) for text in frame["answer"]]
    points = pd.DataFrame({"key": right, "shown": shown, "outcome": names, "answer": words})
    grouped: Any = points.groupby(["key", "shown", "outcome"], as_index=False)
    points = grouped.agg(answers=("answer", "size"), answer=("answer", "first"))
    is_length = bool((right == frame["length"]).all())
    title = "right answer (the sequence length, items)" if is_length else "right answer"
    x = axes.length_axis(right, title, "key", 8, log=False)
    y = alt.Y("shown:Q", **axes.linear("answer", (0, top), 6, format="d"))
    ends = [int(right.min()), int(right.max())]
    line = draw.rows(pd.DataFrame({"key": ends, "shown": ends})).mark_line(
        strokeWidth=1.1, strokeDash=[4, 3], color=theme.colour("float64")
    )
    looks = {name: look for name, look in _ANSWER_LOOKS.items() if (names == name).any()}
    most = max(int(points["answers"].max()), 2)
    size = alt.Size("answers:Q", scale=alt.Scale(domain=[1, most], range=[26, 190]), legend=None)
    marks = draw.rows(points).mark_point(filled=True, strokeWidth=1.1, opacity=0.85)
    marks = marks.encode(
        x=x,
        y=y,
        size=size,
        tooltip=draw.tooltips(points),
        **looks_by_name("outcome", looks, columns=2, symbolSize=60),
    )
    trained = training_end(end, frame["length"], None) if is_length else []
    return draw.panel(
        [line.encode(x=x, y=y), marks, *(mark.encode(x="key:Q") for mark in trained)],
        _WIDTH,
        _ANSWERS_HEIGHT,
    )


def difference_chart(result: AnswerDifference) -> Chart:
    """The share of right answers of both by length, each with its Wilson intervals where it has
    some.
    """
    sides = [theme.inert(str(result.summary[name].iloc[0])) for name in ("first", "second")]
    rows = result.curves.rename(
        columns={"accuracy": "value", "wilson_low": "low", "wilson_high": "high"}
    )
    rows = rows.assign(series=rows.pop("side").map(theme.inert))
    hue = draw.hue(
        "series", dict(zip(sides, ("full", "frozen"), strict=True)), columns=2, symbolSize=60
    )
    x, y = length_axis(rows["length"], _ITEMS), axes.share("right answers")
    marks = curve(rows, x, y, hue, bands=[BAND], points=28)
    task = theme.inert(str(result.provenance.parameters["task"]))
    notes = [
        *result.findings()[:1],
        "Bands: Wilson's 95% intervals by length, where something was drawn.",
    ]
    return draw.figure(
        [[draw.panel(marks, _WIDTH, _HEIGHT)]], f"{task}: {sides[0]} and {sides[1]}", notes
    )


def right_chart(results: Sequence[Evaluation], width: int, height: int) -> Chart:
    """The share of right answers by length: a line a task, of at most two, with its Wilson
    intervals where it has some.

    Dotted: the share of prompts on which one and the same answer is right.
    """
    tasks = [theme.inert(task_of(result)) for result in results]
    names = {"accuracy": "value", "wilson_low": "low", "wilson_high": "high"}
    parts = [result.summary[["length", *names, "right", "asked"]] for result in results]
    joined: Any = pd.concat(parts, keys=tasks, names=["series"])
    rows = joined.rename(columns=names).reset_index("series")
    hue = draw.hue(
        "series", dict(zip(tasks, ("full", "frozen"), strict=False)), columns=2, symbolSize=60
    )
    dashes = alt.Scale(domain=tasks, range=[[1, 0], [5, 4]][: len(tasks)])
    dash = alt.StrokeDash("series:N", scale=dashes, legend=hue["legend"])
    y = axes.share("right answers", values=[0, 0.5, 1])
    x = axes.length_axis(rows["length"], "items of the sequence")
    marks = curve(rows, x, y, hue, dash=dash, bands=[BAND], points=30)
    shares = pd.DataFrame({"series": tasks, "value": [*map(_constant_share, results)]})
    constant = draw.rows(shares).mark_rule(strokeWidth=1.1, strokeDash=[1, 2])
    return axes.themed(
        draw.layers(constant.encode(y="value:Q", color=hue), *marks, width=width, height=height)
    )


def _constant_share(result: Evaluation) -> float:
    """The share of prompts on which one and the same answer is right."""
    _, right, prompts = constant_answer(result)
    return right / prompts


_COLUMN, _ABOVE, _BENEATH, _LETTERS = 300, 190, 120, 115
_FLOORS = {
    "distance": ("distance of n and n + 1 at y (float64)", [1, 0]),
    "pair_noise": ("rounding noise of this difference", [1.5, 2.5]),
    "machine_line": ("machine line: one representable step", [7, 4]),
}


def counting_chart(result: Counting) -> Chart:
    """A column a dtype. Above: the float64 distance at y, its noise and the machine line, with a
    line at the predicted impossible count. Below: the answers' absolute errors. A dotted line
    stands where training ends.
    """
    frame = frame_of(result)
    axes.require_finite(frame["distance"], "a counting curve")
    task, lengths = str(frame["task"].iloc[0]), frame["length"]
    end = (result.provenance.model.get("trained_lengths") or {}).get(task)
    x = length_axis(lengths, "count n (items of the sequence)")
    rows = frame.melt(["dtype", "length"], list(_FLOORS), "quantity").dropna(subset="value")
    rows, y = log_rows(rows, "L2 distance at y")
    dash = draw.dashes(_FLOORS, rows["quantity"], symbolStrokeColor=theme.colour("float64"))
    summary, above, below = [row for _, row in result.summary.iterrows()], [], []
    for row in summary:
        name = str(row["dtype"])
        marks = curve(
            rows[rows["dtype"] == name], axes.quiet(x), y, alt.value(theme.colour(name)), dash=dash
        )
        marks += _marks(row, end, lengths, labelled=True)
        above.append(draw.panel(marks, _COLUMN, _ABOVE, name, **draw.BOLD))
        answers = frame[frame["dtype"] == name]
        outcome = answers["correct"].map({True: _RIGHT_NUMBER, False: _WRONG_NUMBER})
        outcome = outcome.where(answers["number"].notna(), answers["kind"].map(NO_NUMBER))
        points = error_points(
            answers, outcome, x, largest_error(frame), _NUMBER_LOOKS, filled=True, size=32
        )
        below.append(
            draw.panel([points, *_marks(row, end, lengths, labelled=False)], _COLUMN, _BENEATH)
        )
    title = f"{task}: distance between the prompts of n and n + 1 items, and the answers"
    notes = [line for row in summary for line in textwrap.wrap(counting_words(row), _LETTERS)]
    return draw.figure(
        [above, below],
        title,
        notes,
        between=16,
        color="shared",
        shape="shared",
        strokeDash="shared",
    )


def _marks(row: Row, end: int | None, lengths: Column, labelled: bool) -> list[Any]:
    """Vertical lines where training ends and at the predicted impossible count; `labelled`: with
    words.
    """
    height = 0.6 * _ABOVE if labelled else None
    marks = training_end(end, lengths, height and height - 15)
    if pd.isna(row["impossible_from"]):
        return marks
    place = int(row["impossible_from"])
    side = "left" if place > (int(lengths.min()) + int(lengths.max())) / 2 else "right"
    words, colour = f"predicted impossible from {place}", theme.colour(str(row["dtype"]))
    dash = theme.DASHES["predicted"]
    return marks + draw.line_at(
        "x", "length", place, words=words, height=height, side=side, colour=colour, dash=dash
    )
