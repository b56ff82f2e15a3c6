"""Mitigations: a study's effects as a forest plot."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from ostools.ground.words import title_of
from ostools.measure.study.study import Study
from ostools.measure.study.verdicts import (
    HELPS,
    HURTS,
    LARGER,
    NO_EFFECT,
    SMALLER,
    UNDECIDED,
    bound,
)
from ostools.reporting.forms import bars, looks_by_name
from ostools.reporting.style import axes, draw, theme
from ostools.results import Chart, Frame

_FOREST_WIDTH, _FOREST_ROW = 250, 24
_FOREST_COLUMNS = 3
_TITLES = {
    "correct": "right answers (percentage points)",
    "log_probability": "log p of the right line (nats)",
    "collapse_distance": "distance of n and n + 1 at y, {dtype}",
    "sensitivity": "sensitivity of the answer's tokens",
}
NOT_JUDGED = "no verdict"
_LOOKS = {
    HELPS: (HELPS, "triangle-right"),
    HURTS: (HURTS, "triangle-left"),
    LARGER: (LARGER, "triangle-up"),
    SMALLER: (SMALLER, "triangle-down"),
    NO_EFFECT: (NO_EFFECT, "circle"),
    UNDECIDED: ("none", "square"),
    NOT_JUDGED: (NOT_JUDGED, "diamond"),
}
_ENDS = ("value", "low", "high", "verdict_low", "verdict_high")
_GREY = theme.colour("float64")


def study_chart(result: Study) -> Chart:
    """Thick: the interval at the study's level; thin: the wider one that its verdict is read from;
    0, or x1, is no effect.

    Ratios stand on a log axis; one to what is below its own rounding is a bound, with that word and
    no interval. A mitigation that changed nothing, or a quantity that could not be measured, has no
    mark, and a word in its place.
    """
    rows = _rows(result)
    order = list(dict.fromkeys(rows["name"]))
    panels = [
        _panel(rows[rows["panel"] == panel], order, labelled=index % _FOREST_COLUMNS == 0)
        for index, panel in enumerate(dict.fromkeys(rows["panel"]))
    ]
    title = f"Mitigations against none, {result.provenance.parameters['task']}"
    options = {"spacing": 18, "between": 22, "color": "shared", "shape": "shared"}
    return draw.figure(draw.in_rows(panels, _FOREST_COLUMNS), title, _subtitle(result), **options)


def _subtitle(result: Study) -> list[str]:
    parameters = result.provenance.parameters
    lengths, seeds = parameters["lengths"], len(parameters["seeds"])
    level, wide = parameters["level"], parameters["verdict_level"]
    notes = [
        f"{title_of(result.provenance.model)}; {len(lengths)} lengths from {lengths[0]} to {lengths[-1]}, {seeds} "
        f"seed{'s' if seeds > 1 else ''} each; right of the line: more of it than without the mitigation.",
        f"Thick: {level:.0%} interval over lengths; thin: {wide:.2%}, so that all verdicts hold together at {level:.0%}.",
    ]
    trained: Any = result.frame["within_training"]
    left_out = (
        "Lengths beyond training are left out."
        if trained.any()
        else "No length is within training."
    )
    return notes if trained.all() else [*notes, left_out]


def _rows(result: Study) -> Frame:
    """One row a mark: effects as they are drawn (points, or factors), their intervals, and what the
    verdict says of them.
    """
    order = list(_TITLES)
    effects: Frame = result.effects
    effects = effects.sort_values(
        "quantity", key=lambda names: names.map(order.index), kind="stable"
    )
    verdict_table: Frame = result.verdicts.set_index("mitigation")
    limits = [bound(row) for row in effects.to_dict("records")]
    scale = np.where(effects["quantity"] == "correct", 100.0, 1.0)
    rows = effects[
        ["mitigation", "quantity", "dtype", "scale", "reason", "pairs", "inactive", "lengths"]
    ].copy()
    ends = ["low", "high", "verdict_low", "verdict_high"]
    for name in ("effect", *ends):
        rows[name] = np.where(
            effects["scale"] == "log10 ratio", 10.0 ** effects[name], scale * effects[name]
        )
    rows.loc[[limit != "" for limit in limits], ends] = np.nan  # a bound has no interval
    rows["panel"] = [
        _TITLES[quantity].format(dtype=dtype)
        for quantity, dtype in zip(rows["quantity"], rows["dtype"], strict=True)
    ]
    verdicts = [
        verdict_table.loc[mitigation, about] if about else NOT_JUDGED
        for mitigation, about in zip(effects["mitigation"], effects["about"], strict=True)
    ]
    rows["verdict"] = [verdict if verdict in _LOOKS else NOT_JUDGED for verdict in verdicts]
    missing = np.where(rows["inactive"] > 0, "inactive", "not measured")
    rows["limit"] = [limit.rstrip(",") for limit in limits]
    rows["word"] = np.where(rows["pairs"] > 0, "", missing)
    rows["name"] = [theme.inert(name) for name in rows["mitigation"]]
    rows["reason"] = [theme.inert(text) for text in rows["reason"]]
    return rows.rename(columns={"effect": "value"}).drop(
        columns=["mitigation", "quantity", "dtype", "inactive"]
    )


def _panel(rows: Frame, order: list[str], labelled: bool) -> alt.LayerChart:
    ratio = bool((rows["scale"] == "log10 ratio").all())
    none = 1.0 if ratio else 0.0
    measured, missing = rows[rows["pairs"] > 0].drop(columns="scale"), rows[rows["pairs"] == 0]
    hue, shape = looks_by_name("verdict", _LOOKS, columns=4, symbolSize=90).values()
    axis = axes.names(order, labels=labelled, domain=False, labelLimit=260, labelPadding=8)
    value = _value_axis(measured, ratio, none)
    intervals = [("verdict_low", "verdict_high", 1.2), ("low", "high", 3.6)]
    marks = draw.line_at("x", "none", none, colour=_GREY, dash=[3, 3])
    marks += bars(measured, axis, value, hue, intervals=intervals, shape=shape, size=90)
    italic: dict[str, Any] = {"fontSize": 10, "fontStyle": "italic", "color": _GREY}
    if len(bounds := measured[measured["limit"] != ""]):
        words = draw.rows(bounds[["name", "value", "limit"]]).mark_text(dy=-10, **italic)
        marks.append(words.encode(x=alt.X("value:Q", **value), y=axis, text="limit:N"))
    if len(missing):
        words = draw.rows(missing[["name", "word"]]).mark_text(align="left", **italic)
        marks.append(words.encode(x=alt.value(6), y=axis, text="word:N"))
    return draw.panel(marks, _FOREST_WIDTH, _FOREST_ROW * len(order), str(rows["panel"].iloc[0]))


def _value_axis(measured: Frame, ratio: bool, none: float) -> dict[str, Any]:
    """Around every effect and interval of the panel, with no effect in sight; ratios on a log axis
    of factors.
    """
    ends = measured[list(_ENDS)].to_numpy(dtype=float).ravel()
    values = np.append(ends[np.isfinite(ends)], none)
    low, high = float(values.min()), float(values.max())
    if ratio:
        return axes.log_channel(pd.Series([low / 1.15, high * 1.15]), "factor")
    room = 0.06 * (high - low) or 1.0
    return axes.linear(None, (low - room, high + room), grid=True, tickCount=4)
