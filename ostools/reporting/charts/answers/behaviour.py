"""Behaviour against length: above, how often the answer is right and how likely the right one was; below, how far it is off."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from ostools.ground.words import short_name
from ostools.measure.answers.behaviour import Behaviour
from ostools.measure.answers.reading import CUT_OFF, SOMETHING_ELSE
from ostools.reporting.findings.behaviour import behaviour_notes
from ostools.reporting.look import axes, draw, theme
from ostools.reporting.look.answer_marks import length_axis, training_end
from ostools.results import Column, Frame, frame_of

WIDTH, HEIGHT, BELOW = 520, 200, 150
_ACCURACY, _PROBABILITY = "share of answers that are right", "probability of the right answer line"
_MEAN, _ONE = "mean over the answers with a number", "one answer"
_NONE = {kind: f"no number: {kind} (at the top edge)" for kind in (SOMETHING_ELSE, CUT_OFF)}


def behaviour_chart(result: Behaviour) -> alt.VConcatChart:
    """Above: accuracy with its 95% interval, where there is one, and the probability of the right line; hollow where a
    mitigation changed nothing. Below, where the answer is a number: the absolute error of each answer and their mean. A dotted
    line stands where training ends.
    """
    asked: Frame = frame_of(result)  # of a hosted model every question, with an answer or without
    frame: Frame = asked[asked["correct"].notna()]
    summary: Frame = result.summary
    end = _trained(result)
    numeric = bool(frame["absolute_error"].notna().any())
    panels = [_shares(summary, asked["mitigation"].iloc[0] != "none", end, last=not numeric)]
    if numeric:
        panels.append(_errors(frame, end))
    notes = behaviour_notes(result)
    if end is not None and result.provenance.parameters["rewritten"]:
        notes.append("The lengths of training are those of the task without the mitigation.")
    title = alt.TitleParams(_title(result, asked), subtitle=notes)
    chart = alt.vconcat(*panels, spacing=14, title=title).resolve_scale(
        color="independent", shape="independent", strokeDash="independent"
    )
    return axes.themed(chart)


def _trained(result: Behaviour) -> int | None:
    """The longest length that the model's card lists for this task, where the table has lengths on both sides of it."""
    known = frame_of(result)[["length", "within_training"]].dropna()
    if known.empty or known["within_training"].all() or not known["within_training"].any():
        return None
    return result.provenance.parameters["trained_length"]


def _title(result: Behaviour, frame: Frame) -> str:
    mitigation = frame["mitigation"].iloc[0]
    under = "" if mitigation == "none" else f", under {mitigation}"
    return f"{frame['task'].iloc[0]}: answers of {short_name(result.provenance.model)}{under}"


def _shares(summary: Frame, mitigated: bool, end: int | None, last: bool) -> Any:
    wide = summary.assign(idle=mitigated & (summary["active"] == 0))
    bands = wide[["length", "wilson_low", "wilson_high"]].dropna()
    keys = ["length", "idle", "right", "asked"]
    rows: Frame = pd.concat(
        [
            wide[[*keys, name]].rename(columns={name: "value"}).assign(quantity=words)
            for name, words in (("accuracy", _ACCURACY), ("probability", _PROBABILITY))
        ]
    ).dropna(subset="value")
    names = [_ACCURACY, *([_PROBABILITY] if (rows["quantity"] == _PROBABILITY).any() else [])]
    hues = alt.Scale(domain=names, range=[theme.colour("full"), theme.colour("probability")][: len(names)])
    dashes = alt.Scale(domain=names, range=[[1, 0], [5, 3]][: len(names)])
    legend = alt.Legend(title=None, columns=2, symbolStrokeWidth=2)
    title = "sequence length (items)" if last else None
    x = length_axis(summary["length"], title, labels=last)
    y = alt.Y(
        "value:Q",
        title="share, probability",
        scale=alt.Scale(domain=[0, 1], nice=False, padding=5),
        axis=alt.Axis(values=[0, 0.25, 0.5, 0.75, 1], format=".0%"),
    )
    base = draw.rows(rows).encode(x=x, color=alt.Color("quantity:N", scale=hues, legend=legend))
    tooltip = ["length:Q", "quantity:N", draw.VALUE, "right:Q", "asked:Q"]
    measured = base.transform_filter(f"datum.quantity == {theme.safe_json(_ACCURACY)}")
    layers: list[Any] = [
        base.mark_line(strokeWidth=1.5, strokeJoin="round").encode(
            y=y, strokeDash=alt.StrokeDash("quantity:N", scale=dashes, legend=legend)
        ),
        measured.transform_filter("!datum.idle").mark_circle(size=28, opacity=1).encode(y=y, tooltip=tooltip),
        measured.transform_filter("datum.idle")
        .mark_point(size=30, shape="circle", fill=theme.LIGHT_GROUND, opacity=1, strokeWidth=1.4)
        .encode(y=y, tooltip=tooltip),
    ]
    if not bands.empty:
        band = draw.rows(bands).encode(x=x, y=alt.Y("wilson_low:Q"), y2="wilson_high:Q")
        area = band.mark_area(opacity=0.16, color=theme.colour("full"))
        rule = band.mark_rule(color=theme.colour("full"), strokeWidth=1.2)
        layers.insert(0, area if len(bands) > 1 else rule)
    return draw.layers(*layers, *training_end(end, summary["length"], 0.62 * HEIGHT), width=WIDTH, height=HEIGHT)


def _errors(frame: Frame, end: int | None) -> Any:
    errors = frame["absolute_error"].astype("Float64").astype(float)
    largest = max(1, int(errors.max()))
    top = 2 * largest + 1  # above every error, for the answers that have none
    each: Frame = frame[["length", "key", "answer"]].assign(
        error=errors.fillna(float(top)), kind=_kinds(frame), answer=[theme.shown(text, 60) for text in frame["answer"]]
    )
    means: Frame = frame.assign(error=errors).groupby("length", as_index=False)["error"].mean().dropna()
    means = means.assign(kind=_MEAN)
    names = [_MEAN, _ONE, *(name for name in _NONE.values() if (each["kind"] == name).any())]
    looks = {_MEAN: ("frozen", "stroke"), _ONE: ("frozen", "circle")}
    looks |= {_NONE[SOMETHING_ELSE]: (SOMETHING_ELSE, "triangle-down"), _NONE[CUT_OFF]: (CUT_OFF, "triangle-right")}
    hues = alt.Scale(domain=names, range=[theme.colour(looks[name][0]) for name in names])
    shapes = alt.Scale(domain=names, range=[looks[name][1] for name in names])
    legend = alt.Legend(title=None, columns=2, symbolType=alt.Undefined, symbolSize=60)
    x = length_axis(frame["length"], "sequence length (items)")
    y = alt.Y(
        "error:Q",
        title="absolute error",
        scale=alt.Scale(type="symlog", domain=[0, top], nice=False, padding=6),
        axis=alt.Axis(values=_ticks(largest), format=",d" if largest < 10**5 else ".0e", labelOverlap=False),
    )
    hue = alt.Color("kind:N", scale=hues, legend=legend)
    points = draw.rows(each).mark_point(filled=False, size=24, strokeWidth=1.1)
    layers: list[Any] = [
        points.encode(
            x=x,
            y=y,
            color=hue,
            shape=alt.Shape("kind:N", scale=shapes, legend=legend),
            tooltip=["length:Q", "key:N", "answer:N", "kind:N"],
        ),
        draw.rows(means).mark_line(strokeWidth=1.5).encode(x=x, y=y, color=hue),
    ]
    return draw.layers(*layers, *training_end(end, frame["length"], None), width=WIDTH, height=BELOW)


def _kinds(frame: Frame) -> Column:
    without = frame["kind"].eq(CUT_OFF).map({True: _NONE[CUT_OFF], False: _NONE[SOMETHING_ELSE]})
    return without.where(frame["absolute_error"].isna(), _ONE)


def _ticks(largest: int) -> list[int]:
    """0 and powers of ten (every second, third, ... where there are many), with 2 and 5 between them where there are few."""
    powers = range(len(str(largest)))
    if len(powers) <= 3:
        return [0, *(digit * 10**power for power in powers for digit in (1, 2, 5) if digit * 10**power <= 2 * largest)]
    return [0, *(10**power for power in powers if power % (1 + len(powers) // 5) == 0)]
