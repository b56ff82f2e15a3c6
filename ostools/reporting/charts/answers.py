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
    came, kind = frame["correct"].notna(), frame["kind"]
    correct = frame["correct"].astype("boolean").fillna(False).astype(bool)
    digits: Any = frame["answer"].map(digits_in, na_action="ignore")
    same = digits == frame["key"]
    outcome = correct.map({True: RIGHT, False: WRONG})
    outcome = outcome.mask(~correct & same, OTHER_WORDS)
    outcome = outcome.mask(kind == SOMETHING_ELSE, SOMETHING_ELSE).mask(kind == CUT_OFF, CUT_OFF)
    return outcome.mask(~came, NOTHING_CAME)


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
    powers = range(len(str(largest)))
    few = [
        digit * 10**power
        for power in powers
        for digit in (1, 2, 5)
        if digit * 10**power <= 2 * largest
    ]
    ticks = (
        few
        if len(powers) <= 3
        else [10**power for power in powers if power % (1 + len(powers) // 5) == 0]
    )
    looks: dict[str, Any] = {"values": [0, *ticks], "format": ",d" if largest < 10**5 else ".0e"}
    scale = alt.Scale(type="symlog", domain=[0, top], nice=False, padding=6)
    return {
        "title": "absolute error",
        "scale": scale,
        "axis": alt.Axis(labelOverlap=False, **(looks | axis)),
    }


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
    questions: Frame = frame_of(
        result
    )  # of a hosted model every question, with an answer or without
    frame: Frame = questions[questions["correct"].notna()]
    mitigation, end = questions["mitigation"].iloc[0], _training_end(result)
    numeric = bool(frame["absolute_error"].notna().any())
    constant = _constant_share(result) if constant_words(result) else None
    panels = [[_answers_panel(frame, end)]] if numeric else []
    panels += [[_share_panel(result.summary, mitigation != "none", end, constant)]]
    notes = ["On the diagonal an answer is right; larger: more answers."] if numeric else []
    notes += evaluation_notes(result)
    if constant is not None:
        notes.append(f"Dotted across: {constant_words(result)}")
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
    training = frame_of(result)[["length", "within_training"]].dropna()
    if training.empty or training["within_training"].all() or not training["within_training"].any():
        return None
    return result.provenance.parameters["trained_length"]


def _share_panel(summary: Frame, mitigated: bool, end: int | None, constant: float | None) -> Any:
    measures = {
        "accuracy": (_ACCURACY, [1, 0], "full"),
        "probability": (_PROBABILITY, [5, 3], "probability"),
    }
    present = {
        name: look
        for name, look in measures.items()
        if name == "accuracy" or summary[name].notna().any()
    }
    hue = draw.hue("series", {words: look for words, _, look in present.values()})
    scale = alt.Scale(
        domain=[words for words, *_ in present.values()],
        range=[dash for _, dash, _ in present.values()],
    )
    dash = alt.StrokeDash("series:N", scale=scale, legend=hue["legend"])
    x = length_axis(summary["length"], _ITEMS)
    y, marks = axes.share("share, probability"), []
    for name, (words, *_) in present.items():
        is_share = name == "accuracy"
        columns = ["length", "right", "asked", *(["wilson_low", "wilson_high"] if is_share else [])]
        rows = summary[columns].assign(value=summary[name], series=words).dropna(subset="value")
        rows = (
            rows.dropna(axis="columns", how="all") if len(rows) else rows
        )  # else every column would go
        bands = [("wilson_low", "wilson_high", 0.16)]
        marks += curve(rows, x, y, hue, dash=dash, bands=bands, points=28 * is_share)
        if "wilson_low" in rows and rows["length"].nunique() == 1:
            marks += rules(rows, "x", x, "wilson_low", "wilson_high", color=hue)
    if mitigated and (summary["active"] == 0).any():
        marks.append(_idle_rings(summary[summary["active"] == 0], x, y, hue))
    if constant is not None:
        marks += draw.line_at("y", "value", constant, colour=theme.colour("float64"), dash=[1, 2])
    return draw.panel(
        [*marks, *training_end(end, summary["length"], 0.62 * _HEIGHT)], _WIDTH, _HEIGHT
    )


def _idle_rings(rows: Frame, x: alt.X, y: dict[str, Any], hue: Any) -> Any:
    """A hollow mark at each length at which the mitigation changed nothing."""
    ring = draw.rows(rows[["length"]].assign(value=rows["accuracy"], series=_ACCURACY))
    ring = ring.mark_point(
        size=30, shape="circle", fill=theme.LIGHT_GROUND, opacity=1, strokeWidth=1.4
    )
    return ring.encode(x=x, y=alt.Y("value:Q", **y), color=hue)


def _answers_panel(frame: Frame, end: int | None) -> Any:
    """The answers against the right ones, and the diagonal. What lies beyond twice the largest
    right answer, and what holds no number, stands at the top edge."""
    right = frame["key"].map(int)
    limit = 2 * max(int(right.max()), 1)
    number = frame["number"]
    beyond = (number > limit).fillna(False)
    names = frame["correct"].map({True: _RIGHT_NUMBER, False: _WRONG_NUMBER}).mask(beyond, _BEYOND)
    names = names.where(number.notna(), frame["kind"].map(NO_NUMBER))
    within = number[~beyond].dropna()
    largest = max(int(right.max()), int(within.max()) if len(within) else 0)
    top = 1.08 * largest
    shown = number.where(~beyond).astype("Float64").fillna(top).astype(float)
    points = pd.DataFrame(
        {"key": right, "shown": shown, "outcome": names, "answer": frame["answer"].map(_short)}
    )
    grouped: Any = points.groupby(["key", "shown", "outcome"], as_index=False)
    points = grouped.agg(answers=("answer", "size"), answer=("answer", "first"))
    is_length = bool((right == frame["length"]).all())
    words = "right answer (the sequence length, items)" if is_length else "right answer"
    x, y = (
        axes.length_axis(right, words, "key", 8, log=False),
        axes.linear("answer", (0, top), 6, format="d"),
    )
    diagonal = draw.rows(
        pd.DataFrame({"key": [right.min(), right.max()], "shown": [right.min(), right.max()]})
    )
    line = diagonal.mark_line(strokeWidth=1.1, strokeDash=[4, 3], color=theme.colour("float64"))
    looks = {name: look for name, look in _ANSWER_LOOKS.items() if (names == name).any()}
    most = int(points["answers"].max())
    size = alt.Size(
        "answers:Q", scale=alt.Scale(domain=[1, max(most, 2)], range=[26, 190]), legend=None
    )
    marks = draw.rows(points).mark_point(filled=True, strokeWidth=1.1, opacity=0.85)
    marks = marks.encode(
        x=x,
        y=alt.Y("shown:Q", **y),
        size=size,
        tooltip=draw.tooltips(points),
        **looks_by_name("outcome", looks, columns=2, symbolSize=60),
    )
    ends = (
        [mark.encode(x="key:Q") for mark in training_end(end, frame["length"], None)]
        if is_length
        else []
    )
    return draw.panel(
        [line.encode(x=x, y=alt.Y("shown:Q", **y)), marks, *ends], _WIDTH, _ANSWERS_HEIGHT
    )


def _short(text: Any) -> str:
    return theme.short_word(text, 60)


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
    legend: dict[str, Any] = {
        "title": None,
        "columns": 2,
        "symbolSize": 60,
    }  # of colour and dash, in one
    hue = draw.hue("series", dict(zip(tasks, ("full", "frozen"), strict=False)), **legend)
    scale, axis = (
        alt.Scale(domain=[0, 1], nice=False, padding=5),
        alt.Axis(values=[0, 0.5, 1], format=".0%"),
    )
    dashes = alt.Scale(domain=tasks, range=[[1, 0], [5, 4]][: len(tasks)])
    looks: dict[str, Any] = {
        "dash": alt.StrokeDash("series:N", scale=dashes, legend=alt.Legend(**legend)),
        "bands": [BAND],
        "points": 30,
    }
    y = {"title": "right answers", "scale": scale, "axis": axis}
    marks = curve(rows, axes.length_axis(rows["length"], "items of the sequence"), y, hue, **looks)
    shares = [
        {"series": task, "value": _constant_share(result)}
        for task, result in zip(tasks, results, strict=True)
    ]
    constant = draw.rows(pd.DataFrame(shares)).mark_rule(strokeWidth=1.1, strokeDash=[1, 2])
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
