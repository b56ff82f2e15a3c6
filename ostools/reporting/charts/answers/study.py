"""A study's effects as a forest plot: a panel a quantity, a row a mitigation, each effect with its intervals."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from ostools.experiments.study.study import Study
from ostools.experiments.study.verdicts import HELPS, HURTS, LARGER, NO_EFFECT, SMALLER, bound
from ostools.ground.words import short_name
from ostools.reporting.look import axes, draw, theme
from ostools.results import Frame

WIDTH, ROW = 250, 24
COLUMNS = 3
_TITLES = {
    "correct": "right answers (percentage points)",
    "log_probability": "log p of the right line (nats)",
    "collapse_distance": "distance of n and n + 1 at y, {dtype}",
    "sensitivity": "sensitivity of the answer's tokens",
    "frozen_sensitivity": "the same, patterns and norms frozen",
    "bound": "certified bound of the frozen one",
    "tokens": "tokens of the prompt",
    "seconds": "time of one forward pass",
}
NOT_JUDGED = "no verdict"
_LOOKS = {
    HELPS: "triangle-right",
    HURTS: "triangle-left",
    LARGER: "triangle-up",
    SMALLER: "triangle-down",
    NO_EFFECT: "circle",
    NOT_JUDGED: "diamond",
}


def study_chart(result: Study) -> alt.VConcatChart:
    """Thick: the interval at the study's level; thin: the wider one that its verdict is read from; 0, or x1, is no effect.

    Ratios stand on a log axis; one to what is below its own rounding is a bound, with that word and no interval. A mitigation
    that changed nothing, or a quantity that could not be measured, has no mark, and a word in its place.
    """
    parameters = result.provenance.parameters
    rows = _rows(result)
    names = list(dict.fromkeys(rows["mitigation"]))
    panels = [
        _panel(rows[rows["panel"] == panel], names, labelled=index % COLUMNS == 0)
        for index, panel in enumerate(dict.fromkeys(rows["panel"]))
    ]
    grid = [alt.hconcat(*panels[start : start + COLUMNS], spacing=18) for start in range(0, len(panels), COLUMNS)]
    title = alt.TitleParams(f"Mitigations against none, {parameters['task']}", subtitle=_subtitle(result))
    chart = alt.vconcat(*grid, title=title, spacing=22).resolve_scale(color="shared", shape="shared")
    return axes.themed(chart)


def _subtitle(result: Study) -> list[str]:
    parameters = result.provenance.parameters
    lengths, seeds = parameters["lengths"], len(parameters["seeds"])
    level, wide = parameters["level"], parameters["verdict_level"]
    said = [
        f"{short_name(result.provenance.model)}; {len(lengths)} lengths from {lengths[0]} to {lengths[-1]}, {seeds} "
        f"seed{'s' if seeds > 1 else ''} each; right of the line is better but for tokens and time.",
        f"Thick: {level:.0%} interval over lengths; thin: {wide:.2%}, so that all verdicts hold together at {level:.0%}.",
    ]
    trained = result.frame["within_training"]
    if not bool(trained.all()):
        rest = "no length is within training" if not bool(trained.any()) else "lengths beyond training are left out"
        said.append(rest[0].upper() + rest[1:] + ".")
    return said


def _rows(result: Study) -> Frame:
    """One row a mark: effects as they are drawn (points, or factors), their intervals, and what the verdict says of them."""
    order = list(_TITLES)
    effects: Any = result.effects
    effects = effects.sort_values("quantity", key=lambda names: names.map(order.index), kind="stable")
    said: Any = result.verdicts.set_index("mitigation")
    limits = [bound(row) for row in effects.to_dict("records")]
    scale = np.where(effects["quantity"] == "correct", 100.0, 1.0)
    rows = effects[["mitigation", "quantity", "dtype", "scale", "reason", "pairs", "inactive", "lengths"]].copy()
    for name in ("effect", "low", "high", "verdict_low", "verdict_high"):
        rows[name] = np.where(effects["scale"] == "log10 ratio", 10.0 ** effects[name], scale * effects[name])
        if name != "effect":
            rows[name] = rows[name].where([limit == "" for limit in limits])
    rows["panel"] = [
        _TITLES[quantity].format(dtype=dtype) for quantity, dtype in zip(rows["quantity"], rows["dtype"], strict=True)
    ]
    verdicts = [
        said.loc[mitigation, about] if about else NOT_JUDGED
        for mitigation, about in zip(effects["mitigation"], effects["about"], strict=True)
    ]
    rows["verdict"] = [verdict if verdict in _LOOKS else NOT_JUDGED for verdict in verdicts]
    missing = np.where(rows["inactive"] > 0, "inactive", "not measured")
    rows["limit"] = [limit.rstrip(",") for limit in limits]
    rows["word"] = np.where(rows["pairs"] > 0, "", missing)
    rows["mitigation"] = [theme.inert(name) for name in rows["mitigation"]]
    return rows.assign(wide=rows["verdict_low"].notna() & (rows["pairs"] > 0), narrow=rows["low"].notna())


def _panel(rows: Frame, names: list[str], labelled: bool) -> alt.LayerChart:
    ratio = bool((rows["scale"] == "log10 ratio").all())
    none = 1.0 if ratio else 0.0
    measured = rows[rows["pairs"] > 0]
    x = _x(measured, ratio, none)
    ends = ["effect", "low", "high", "verdict_low", "verdict_high"]
    data: Frame = rows.assign(**{name: rows[name].fillna(none) for name in ends}, none=none)
    data = data[
        ["mitigation", "verdict", "word", "limit", "wide", "narrow", "none", "lengths", "pairs", "reason", *ends]
    ]
    data = data.assign(reason=[theme.inert(text) for text in data["reason"]])
    kinds = list(_LOOKS)
    colours = theme.colours(kinds)
    legend = alt.Legend(title=None, columns=4, symbolSize=90)
    base = draw.rows(data).encode(
        y=alt.Y(
            "mitigation:N",
            sort=names,
            title=None,
            axis=alt.Axis(labels=labelled, ticks=False, domain=False, labelLimit=260, labelPadding=8),
        ),
        color=alt.Color("verdict:N", scale=alt.Scale(domain=kinds, range=colours), legend=legend),
        tooltip=[
            *("mitigation:N", "verdict:N"),
            *(alt.Tooltip(f"{name}:Q", format=".4g") for name in ends),
            *("lengths:Q", "pairs:Q", "reason:N"),
        ],
    )
    known = base.transform_filter("datum.word === ''")
    shapes = alt.Shape("verdict:N", scale=alt.Scale(domain=kinds, range=list(_LOOKS.values())), legend=legend)
    layers: list[Any] = [
        alt.Chart(alt.InlineData(values=[{"none": none}]))
        .mark_rule(color=theme.colour("float64"), strokeWidth=1, strokeDash=[3, 3])
        .encode(x=alt.X("none:Q")),
        known.transform_filter("datum.wide")
        .mark_rule(strokeWidth=1.2)
        .encode(x=alt.X("verdict_low:Q"), x2="verdict_high:Q"),
        known.transform_filter("datum.narrow").mark_rule(strokeWidth=3.6).encode(x=alt.X("low:Q"), x2="high:Q"),
        known.mark_point(filled=True, size=90, opacity=1).encode(x=x, shape=shapes),
        known.transform_filter("datum.limit !== ''")
        .mark_text(fontSize=10, dy=-10, fontStyle="italic")
        .encode(x=x, text="limit:N", color=alt.value(theme.colour("float64"))),
        base.transform_filter("datum.word !== ''")
        .mark_text(fontSize=10, align="left", fontStyle="italic")
        .encode(x=alt.value(6), text="word:N", color=alt.value(theme.colour("float64"))),
    ]
    title = draw.heading(str(rows["panel"].iloc[0]))
    return draw.layers(*layers, width=WIDTH, height=alt.Step(ROW), title=title)


def _x(measured: Frame, ratio: bool, none: float) -> alt.X:
    """Around every effect and interval of the panel, with no effect in sight; ratios on a log axis of factors."""
    shown = measured[["effect", "low", "high", "verdict_low", "verdict_high"]].to_numpy(dtype=float).ravel()
    values = np.append(shown[np.isfinite(shown)], none)
    if not ratio:
        low, high = float(values.min()), float(values.max())
        room = 0.06 * (high - low) or 1.0
        axis = alt.Axis(grid=True, tickCount=4)
        return alt.X("effect:Q", title=None, scale=alt.Scale(domain=[low - room, high + room], nice=False), axis=axis)
    low, high = float(values.min()) / 1.15, float(values.max()) * 1.15
    scale, axis = axes.log_axis(pd.Series([low, high]), None)
    axis.title = "factor"
    return alt.X("effect:Q", title=None, scale=scale, axis=axis)
