"""A study of window sizes: the task against collapse with the Pareto front, and each against the window."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from ostools.experiments.study.windows import WindowStudy
from ostools.ground.words import short_name
from ostools.reporting.forms.curve import curve
from ostools.reporting.look import axes, draw, theme
from ostools.results import Frame

WIDTH, HEIGHT, BELOW = 340, 240, 130
_FRONT, _DOMINATED, _NONE = "on the Pareto front", "dominated", "no window"
_LOOKS = {_FRONT: "Pareto", _DOMINATED: "dominated", _NONE: "unmitigated"}
_WORDS = {"accuracy": "share of right answers", "log_probability": "log p of the right line (nats)"}
_FRONTS = {"accuracy": "front", "log_probability": "front_probability"}
_DISTANCE = "L2 distance at y, float64"
_ROUNDING_NOTE = "Hollow triangle: some distances are below rounding, so the mean is at most this."


def windows_chart(result: WindowStudy) -> Any:
    """Above: accuracy and log probability against the float64 distance, the windows on the front labelled and joined.

    Below: the three against the window; the dashed line is no window. A distance with rounding in it is a hollow triangle.
    """
    summary: Any = result.summary
    scored = bool(summary["log_probability"].notna().all())
    objectives = ["accuracy", "log_probability"] if scored else ["accuracy"]
    above = alt.hconcat(*(_trade(summary, name) for name in objectives), spacing=30)
    width = (len(objectives) * WIDTH - 60) // (len(objectives) + 1)
    below = alt.hconcat(*(_against(summary, name, width) for name in (*objectives, "distance")), spacing=30)
    title = f"Sliding windows on {result.provenance.parameters['task']}: answers against collapse"
    return draw.figure([[above], [below]], title, _said(result), between=26)


def _said(result: WindowStudy) -> list[str]:
    """How it was measured; what the marks are; which windows are on the front."""
    parameters = result.provenance.parameters
    lengths, seeds = parameters["lengths"], len(parameters["seeds"])
    own = parameters["pairs"] == parameters["task"]
    pairs = "the questions of n and n + 1 items" if own else f"{parameters['pairs']} with n and n + 1 copies"
    at = f"n = {lengths[0]}" if len(lengths) == 1 else f"n from {lengths[0]} to {lengths[-1]} ({len(lengths)} lengths)"
    of = f"layers {parameters['layers']}" if parameters["layers"] != "all" else "all layers"
    how = f"{short_name(result.provenance.model)}; {at}, {seeds} seed{'s' if seeds > 1 else ''}; windows on {of}, "
    how += f"{parameters['sinks'] or 'no'} sinks."
    if parameters["beyond_training"]:
        how += " Every length is beyond the trained ones."
    elif not bool(result.frame["within_training"].all()):
        how += " Lengths beyond training are left out."
    marks = f"Distance: of {pairs}, geometric mean. Bands: 95% (Wilson)."
    marks += f" {_ROUNDING_NOTE}" if bool((result.summary["floored"] > 0).any()) else ""
    return [how, marks, f"On the front of the point estimates: {'; '.join(_fronts(result.summary))}."]


def _fronts(summary: Frame) -> list[str]:
    """The windows of each front by name."""
    sizes = _names(summary)
    words = {"accuracy": "right answers", "log_probability": "log p"}
    return [
        f"{', '.join(sizes[summary[column].astype(bool)])} ({words[objective]})"
        for objective, column in _FRONTS.items()
        if summary[column].any()
    ]


def _names(summary: Frame) -> Any:
    return summary["window"].astype("string").fillna("no window")


def _trade(summary: Frame, objective: str) -> alt.LayerChart:
    """A task's measure against the distance; the points of the front labelled with their windows where there is room."""
    front = summary[_FRONTS[objective]].astype(bool)
    kind = front.map({True: _FRONT, False: _DOMINATED}).where(summary["window"].notna(), _NONE)
    scale, axis = axes.log_axis(summary["distance"], None)
    room = _room(summary[objective])
    rows: Frame = pd.DataFrame({"distance": summary["distance"], "value": summary[objective], "kind": kind})
    rows = rows.assign(below=summary["floored"] > 0, front=front, window=_names(summary))
    rows["label"] = _labels(rows, scale["domain"], room["domain"])
    base = draw.rows(rows).encode(
        x=alt.X("distance:Q", title=f"{_DISTANCE} (right: less collapse)", scale=scale, axis=axis),
        y=alt.Y("value:Q", title=_WORDS[objective], scale=room),
        tooltip=["window:N", alt.Tooltip("distance:Q", format=".4g"), draw.VALUE, "kind:N"],
    )
    line = base.transform_filter("datum.front").mark_line(
        color=theme.colour(_LOOKS[_FRONT]), strokeWidth=1.4, interpolate="step-before"
    )
    hues = {kind: theme.colour(name) for kind, name in _LOOKS.items()}
    legend = draw.hue("kind", hues, columns=3, symbolType="circle", symbolSize=60, symbolStrokeWidth=0)
    coloured = base.encode(color=legend)
    # The model without a window lies below the others, and larger: a window that changes nothing does not hide it.
    points = _points(coloured.transform_filter(f"datum.kind === '{_NONE}'"), 150, "triangle-left")
    points += _points(coloured.transform_filter(f"datum.kind !== '{_NONE}'"), 52, "triangle-left")
    middle = float(np.sqrt(np.prod(scale["domain"])))
    words = [
        base.transform_filter(f"datum.label !== '' && datum.distance {side} {middle}")
        .mark_text(dy=-10, dx=dx, align=align, fontSize=10)
        .encode(text="label:N")
        for side, dx, align in ((">", -4, "right"), ("<=", 4, "left"))
    ]
    return draw.layers(line.encode(order="distance:Q"), *points, *words, width=WIDTH, height=HEIGHT)


def _labels(rows: Frame, across: list[float], up: list[float]) -> list[str]:
    """A label for each point that has room, those of the front first, with the names of all windows at that point."""
    x = WIDTH * np.log(rows["distance"] / across[0]) / np.log(across[1] / across[0])
    y = HEIGHT * (rows["value"] - up[0]) / (up[1] - up[0])
    labels, taken = [""] * len(rows), []
    for place in np.argsort(~rows["front"].to_numpy(), kind="stable"):
        name, here = str(rows["window"].iloc[place]), (float(x.iloc[place]), float(y.iloc[place]))
        near = [other for *at, other in taken if abs(here[0] - at[0]) < 12 and abs(here[1] - at[1]) < 12]
        if near:
            labels[near[0]] += f", {name}"
        elif all(abs(here[0] - at[0]) > 60 or abs(here[1] - at[1]) > 22 for *at, _ in taken):
            labels[place] = name
            taken.append((*here, place))
    return labels


def _against(summary: Frame, name: str, width: int) -> alt.LayerChart:
    """One measure against the window, the model without a window as a dashed line."""
    sized: Frame = summary[summary["window"].notna()]
    none: Frame = summary[summary["window"].isna()]
    rows: Frame = pd.DataFrame({"window": sized["window"].astype(int), "value": sized[name]})
    rows = rows.assign(below=(sized["floored"] > 0) & (name == "distance"))
    if name == "accuracy":
        rows = rows.assign(low=sized["wilson_low"], high=sized["wilson_high"])
    first, last = int(rows["window"].min()), int(rows["window"].max())
    log = last >= 10 * first
    ticks = [2**power for power in range(20) if first <= 2**power <= last] if log else axes.whole_ticks(first, last)
    domain = [first, max(last, first + 1)]
    x = alt.X(
        "window:Q",
        title="window w (keys seen)",
        scale=alt.Scale(type="log" if log else "linear", domain=domain, nice=False, padding=6),
        axis=alt.Axis(grid=False, format="d", values=ticks),
    )
    y: dict[str, Any] = {"title": _WORDS.get(name), "scale": _room(summary[name]), "axis": alt.Axis()}
    if name == "distance":
        scale, axis = axes.log_axis(summary["distance"], None)
        y = {"title": _DISTANCE, "scale": scale, "axis": axis}
    colour = theme.colour(_LOOKS[_FRONT])
    bands = [("low", "high", 0.18)] if name == "accuracy" else []
    marks = curve(rows, x, y, alt.value(colour), bands=bands, width=1.8, tooltip=["window:Q"])
    marks += _points(draw.rows(rows).encode(x=x, y=alt.Y("value:Q", **y), color=alt.value(colour)), 24, "triangle-down")
    if len(none):
        looks: dict[str, Any] = {"colour": theme.colour(_LOOKS[_NONE]), "dash": [6, 4]}
        marks += draw.line_at("y", "value", float(none[name].iloc[0]), **looks)
    return draw.layers(*marks, width=width, height=BELOW)


def _points(base: Any, size: int, smaller: str) -> list[Any]:
    """A circle each; where rounding is in the mean, a hollow triangle that points to smaller distances."""
    below = base.transform_filter("datum.below").mark_point(
        shape=smaller, size=52, filled=False, opacity=1, strokeWidth=1.2
    )
    return [base.transform_filter("!datum.below").mark_circle(size=size), below]


def _room(values: Any) -> alt.Scale:
    """A little more than the values; all of 0 to 1 for shares."""
    low, high = float(values.min()), float(values.max())
    if low >= 0 and high <= 1:
        return alt.Scale(domain=[0.0, 1.05], nice=False)
    room = 0.08 * (high - low) or 0.1
    return alt.Scale(domain=[low - room, high + room], nice=False)
