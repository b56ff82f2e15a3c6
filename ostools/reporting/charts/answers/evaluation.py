"""Behaviour against length: above, how often the answer is right and how likely the right one was; below, how far it is off."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from ostools.ground.words import short_name
from ostools.measure.answers.evaluate import Evaluation
from ostools.measure.answers.reading import CUT_OFF, SOMETHING_ELSE
from ostools.reporting.charts.answers.errors import LOOKS, NO_NUMBER, error_axis, error_points, largest_error
from ostools.reporting.findings.evaluation import evaluation_notes
from ostools.reporting.forms.curve import curve
from ostools.reporting.look import draw, theme
from ostools.reporting.look.answer_marks import length_axis, training_end
from ostools.results import Frame, frame_of

WIDTH, HEIGHT, BELOW = 520, 200, 150
_ACCURACY, _PROBABILITY = "share of answers that are right", "probability of the right answer line"
_MEAN, _ONE = "mean over the answers with a number", "one answer"
_LENGTH = "sequence length (items)"


def evaluation_chart(result: Evaluation) -> Any:
    """Above: accuracy with its 95% interval, where there is one, and the probability of the right line; hollow where a
    mitigation changed nothing. Below, where the answer is a number: the absolute error of each answer and their mean. A dotted
    line stands where training ends.
    """
    asked: Frame = frame_of(result)  # of a hosted model every question, with an answer or without
    frame: Frame = asked[asked["correct"].notna()]
    mitigation, end = asked["mitigation"].iloc[0], _trained(result)
    numeric = bool(frame["absolute_error"].notna().any())
    panels = [[_shares(result.summary, mitigation != "none", end, last=not numeric)]]
    panels += [[_errors(frame, end)]] if numeric else []
    notes = evaluation_notes(result)
    if end is not None and result.provenance.parameters["rewritten"]:
        notes.append("The lengths of training are those of the task without the mitigation.")
    under = "" if mitigation == "none" else f", under {mitigation}"
    title = f"{asked['task'].iloc[0]}: answers of {short_name(result.provenance.model)}{under}"
    scales = dict.fromkeys(("color", "shape", "strokeDash"), "independent")
    return draw.figure(panels, title, notes, between=14, **scales)


def _trained(result: Evaluation) -> int | None:
    """The longest length that the model's card lists for this task, where the table has lengths on both sides of it."""
    known = frame_of(result)[["length", "within_training"]].dropna()
    if known.empty or known["within_training"].all() or not known["within_training"].any():
        return None
    return result.provenance.parameters["trained_length"]


def _shares(summary: Frame, mitigated: bool, end: int | None, last: bool) -> Any:
    idle = mitigated & (summary["active"] == 0)
    own = {"accuracy": (_ACCURACY, [1, 0], "full"), "probability": (_PROBABILITY, [5, 3], "probability")}
    parts = [
        summary[["length", "right", "asked", "wilson_low", "wilson_high"]].assign(
            value=summary[name], series=words, quantity=name, idle=idle
        )
        for name, (words, _, _) in own.items()
    ]
    rows: Frame = pd.concat(parts, ignore_index=True).dropna(subset="value")
    rows = rows.dropna(axis="columns", how="all") if len(rows) else rows  # else every column would go
    there = [name for name in own if name == "accuracy" or (rows["quantity"] == name).any()]
    names = [own[name][0] for name in there]
    legend = alt.Legend(title=None, columns=2, symbolStrokeWidth=2)
    looks = [[own[name][1] for name in there], [theme.colour(own[name][2]) for name in there]]
    dash, hue = (
        kind("series:N", scale=alt.Scale(domain=names, range=look), legend=legend)
        for kind, look in zip((alt.StrokeDash, alt.Color), looks, strict=True)
    )
    x = length_axis(summary["length"], _LENGTH if last else None, labels=last)
    y: dict[str, Any] = {
        "title": "share, probability",
        "scale": alt.Scale(domain=[0, 1], nice=False, padding=5),
        "axis": alt.Axis(values=[0, 0.25, 0.5, 0.75, 1], format=".0%"),
    }
    measured, told = rows["quantity"] == "accuracy", ["length:Q", "series:N", "right:Q", "asked:Q"]
    bands = [("wilson_low", "wilson_high", 0.16)]
    marks = curve(rows[measured], x, y, hue, dash=dash, bands=bands, points=28, tooltip=told)
    likely = rows[~measured].drop(columns=["wilson_low", "wilson_high"], errors="ignore")
    marks += curve(likely, x, y, hue, dash=dash, tooltip=told) if len(likely) else []
    if (hollow := rows[measured & rows["idle"]]).shape[0]:
        ring = draw.rows(hollow[["length", "value", "series"]])
        ring = ring.mark_point(size=30, shape="circle", fill=theme.LIGHT_GROUND, opacity=1, strokeWidth=1.4)
        marks.append(ring.encode(x=x, y=alt.Y("value:Q", **y), color=hue))
    if "wilson_low" in rows and len(whole := rows[measured].dropna(subset="wilson_low")) == 1:
        rule = draw.rows(whole).mark_rule(color=theme.colour("full"), strokeWidth=1.2)
        marks.append(rule.encode(x=x, y="wilson_low:Q", y2="wilson_high:Q"))
    return draw.layers(*marks, *training_end(end, summary["length"], 0.62 * HEIGHT), width=WIDTH, height=HEIGHT)


def _errors(frame: Frame, end: int | None) -> Any:
    largest = largest_error(frame)
    names = frame["kind"].eq(CUT_OFF).map({True: NO_NUMBER[CUT_OFF], False: NO_NUMBER[SOMETHING_ELSE]})
    names = names.where(frame["absolute_error"].isna(), _ONE)
    looks = {_MEAN: ("frozen", "stroke"), _ONE: ("frozen", "circle")}
    looks |= {name: look for name, look in LOOKS.items() if (names == name).any()}
    x = length_axis(frame["length"], _LENGTH)
    points = error_points(frame, names, x, largest, looks, filled=False, size=24)
    means = frame.assign(value=frame["absolute_error"].astype("Float64").astype(float))
    means = means.groupby("length", as_index=False)["value"].mean().dropna()
    line = curve(
        means, x, error_axis(largest, 2 * largest + 1), alt.value(theme.colour("frozen")), tooltip=["length:Q"]
    )
    return draw.layers(points, *line, *training_end(end, frame["length"], None), width=WIDTH, height=BELOW)
