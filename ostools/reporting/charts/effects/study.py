"""Mitigations: a study's effects as a forest plot."""

from __future__ import annotations

import altair as alt
import numpy as np
import pandas as pd

from ostools.ground.words import title_of
from ostools.measure import Study
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
from ostools.results import Chart, Frame, Looks

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
    trained = set(result.frame["within_training"].dropna())
    lengths, seeds = parameters["lengths"], len(parameters["seeds"])
    level, wide = parameters["level"], parameters["verdict_level"]
    some = "Lengths beyond training are left out."
    left_out = some if True in trained else "No length is within training."
    return [
        f"{title_of(result.provenance.model)}; {len(lengths)} lengths from {lengths[0]} to "
        f"{lengths[-1]}, {seeds} seed{'s' if seeds > 1 else ''} each; right of the line: more of "
        "it than without the mitigation.",
        (
            f"Thick: {level:.0%} interval over lengths; thin: {wide:.2%}, so that all verdicts "
            f"hold together at {level:.0%}."
        ),
        *([] if trained <= {True} else [left_out]),
    ]


def _rows(result: Study) -> Frame:
    """One row a mark: effects as they are drawn (points, or factors), their intervals, and what the
    verdict says of them.
    """
    effects: Frame = result.effects.sort_values(
        "quantity", key=lambda names: names.map([*_TITLES].index), kind="stable"
    )
    verdicts: Frame = result.verdicts.set_index("mitigation")
    limits = [bound(row).rstrip(",") for row in effects.to_dict("records")]
    is_ratio, points = effects["scale"] == "log10 ratio", effects["quantity"] == "correct"
    ends = effects[["effect", *_ENDS[1:]]].astype(float)
    ends = ends.where(~points, 100 * ends).where(~is_ratio, 10.0**ends)
    ends.loc[[limit != "" for limit in limits], list(_ENDS[1:])] = np.nan  # a bound has no interval
    judged = [
        verdicts.loc[mitigation, about] if about else NOT_JUDGED
        for mitigation, about in zip(effects["mitigation"], effects["about"], strict=True)
    ]
    missing = np.where(effects["inactive"] > 0, "inactive", "not measured")
    pairs = zip(effects["quantity"], effects["dtype"], strict=True)
    return effects[["scale", "pairs", "lengths"]].assign(
        **ends.rename(columns={"effect": "value"}),
        panel=[_TITLES[quantity].format(dtype=dtype) for quantity, dtype in pairs],
        verdict=[verdict if verdict in _LOOKS else NOT_JUDGED for verdict in judged],
        limit=limits,
        word=np.where(effects["pairs"] > 0, "", missing),
        name=effects["mitigation"].map(theme.inert),
        reason=effects["reason"].map(theme.inert),
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
    italic: Looks = {"fontSize": 10, "fontStyle": "italic", "color": _GREY}
    if len(bounds := measured[measured["limit"] != ""]):
        words = draw.rows(bounds[["name", "value", "limit"]]).mark_text(dy=-10, **italic)
        marks.append(words.encode(x=alt.X("value:Q", **value), y=axis, text="limit:N"))
    if len(missing):
        words = draw.rows(missing[["name", "word"]]).mark_text(align="left", **italic)
        marks.append(words.encode(x=alt.value(6), y=axis, text="word:N"))
    return draw.panel(marks, _FOREST_WIDTH, _FOREST_ROW * len(order), str(rows["panel"].iloc[0]))


def _value_axis(measured: Frame, ratio: bool, none: float) -> Looks:
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
