"""A study of window sizes: the task against collapse with the Pareto front, and each against the window."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from ostools.experiments.study.windows import WindowStudy
from ostools.ground.words import short_name
from ostools.reporting.look import axes, draw, theme
from ostools.results import Frame

WIDTH, HEIGHT, BELOW = 340, 240, 130
_FRONT, _DOMINATED, _NONE = "on the Pareto front", "dominated", "no window"
_LOOKS = {_FRONT: "Pareto", _DOMINATED: "dominated", _NONE: "unmitigated"}
_WORDS = {"accuracy": "share of right answers", "log_probability": "log p of the right line (nats)"}
_LETTER, _LINE = 6.0, 22  # pixels: of a letter's width, and between two lines of words above and below their points
_DISTANCE = "L2 distance at y, float64"
_ROUNDING_NOTE = "Hollow triangle: some distances are below rounding, so the mean is at most this."


def windows_chart(result: WindowStudy) -> alt.VConcatChart:
    """Above: accuracy and log probability against the float64 distance, the windows on the front labelled and joined.

    Below: the three against the window; the dashed line is no window. A distance with rounding in it is a hollow triangle.
    """
    summary: Any = result.summary
    scored = bool(summary["log_probability"].notna().all())
    objectives = ["accuracy", "log_probability"] if scored else ["accuracy"]
    fronts = {"accuracy": "front", "log_probability": "front_probability"}
    above = alt.hconcat(*(_trade(summary, name, fronts[name]) for name in objectives), spacing=30)
    width = (len(objectives) * WIDTH - 60) // (len(objectives) + 1)
    below = alt.hconcat(*(_against(summary, name, width) for name in (*objectives, "distance")), spacing=30)
    parameters = result.provenance.parameters
    title = alt.TitleParams(
        f"Sliding windows on {parameters['task']}: answers against collapse", subtitle=_said(result)
    )
    return axes.themed(alt.vconcat(above, below, title=title, spacing=26))


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
    if bool((result.summary["floored"] > 0).any()):
        marks += f" {_ROUNDING_NOTE}"
    return [how, marks, f"On the front of the point estimates: {'; '.join(_fronts(result.summary))}."]


def _fronts(summary: Frame) -> list[str]:
    """The windows of each front by name."""
    names = {"front": "right answers", "front_probability": "log p"}
    sizes = summary["window"].astype("string").fillna("no window")
    return [
        f"{', '.join(sizes[summary[column].astype(bool)])} ({words})"
        for column, words in names.items()
        if summary[column].any()
    ]


def _trade(summary: Frame, objective: str, front: str) -> alt.LayerChart:
    """A task's measure against the distance; the points of the front labelled with their windows."""
    kind = summary[front].map({True: _FRONT, False: _DOMINATED}).where(summary["window"].notna(), _NONE)
    scale, axis = axes.log_axis(summary["distance"], None)
    room = _room(summary[objective])
    data: Frame = pd.DataFrame({"distance": summary["distance"], "y": summary[objective], "kind": kind})
    data = data.assign(below=summary["floored"] > 0)
    data = data.assign(front=summary[front], window=summary["window"].astype("string").fillna("none"))
    data = data.assign(label=_labels(data, scale["domain"], room["domain"]))
    data = data.assign(right=np.log(data["distance"]) > np.log(scale["domain"]).mean())
    data = data.assign(
        low=data["y"] < 0.9 * room["domain"][0] + 0.1 * room["domain"][1]
    )  # words above, not on the axis
    base = draw.rows(data).encode(
        x=alt.X("distance:Q", title=f"{_DISTANCE} (right: less collapse)", scale=scale, axis=axis),
        y=alt.Y("y:Q", title=_WORDS[objective], scale=room),
        tooltip=["window:N", alt.Tooltip("distance:Q", format=".4g"), alt.Tooltip("y:Q", format=".4g"), "kind:N"],
    )
    front_line = base.transform_filter("datum.front").mark_line(
        color=theme.colour(_LOOKS[_FRONT]), strokeWidth=1.4, interpolate="step-before"
    )
    colours = {kind: theme.colour(name) for kind, name in _LOOKS.items()}
    hue = draw.hue("kind", colours, columns=3, symbolType="circle", symbolSize=60, symbolStrokeWidth=0)
    # The model without a window lies below the others, and larger: a window that changes nothing does not hide it.
    coloured = base.encode(color=hue)
    points = _points(coloured.transform_filter(f"datum.kind === '{_NONE}'"), 150, "triangle-left")
    points += _points(coloured.transform_filter(f"datum.kind !== '{_NONE}'"), 52, "triangle-left")
    words = [
        base.transform_filter(f"datum.label !== '' && datum.right === {side} && datum.low === {place}")
        .mark_text(dy=-10 if low else 11, dx=-4 if right else 4, align="right" if right else "left", fontSize=10)
        .encode(text="label:N")
        for right, side in ((True, "true"), (False, "false"))
        for low, place in ((True, "true"), (False, "false"))
    ]
    return draw.layers(front_line.encode(order="distance:Q"), *points, *words, width=WIDTH, height=HEIGHT)


def _labels(data: Frame, across: list[float], up: list[float]) -> list[str]:
    """The windows of each point; of points too near for words of their own, all of them at the first, if there is room."""
    x = WIDTH * np.log(data["distance"] / across[0]) / np.log(across[1] / across[0])
    y = HEIGHT * (data["y"] - up[0]) / (up[1] - up[0])
    labels, groups = [""] * len(data), []
    for index in np.argsort(-x.to_numpy()):
        near = next((g for g in groups if abs(x[g[0]] - x[index]) < 110 and abs(y[g[0]] - y[index]) < 16), None)
        groups = groups if near is not None else [*groups, [index]]
        if near is not None:
            near.append(index)
    order = {name: place for place, name in enumerate(data["window"])}
    taken: list[tuple[float, float, float]] = []
    # The front's words come first; where two would stand on each other, the tooltips and the panels below have them.
    for group in sorted(groups, key=lambda group: not data["front"].iloc[group].any()):
        words = _joined(sorted((data["window"][index] for index in group), key=order.__getitem__), order)
        at, width = x[group[0]], _LETTER * len(words)
        start = at - width if at > WIDTH / 2 else at
        if all(start > end or start + width < begin or abs(y[group[0]] - level) > _LINE for begin, end, level in taken):
            labels[group[0]] = words
            taken.append((start, start + width, float(y[group[0]])))
    return labels


def _joined(names: list[str], order: dict[str, int]) -> str:
    """`none, 2 to 8, 16`: neighbours in the list of windows are told as a range."""
    runs: list[list[str]] = []
    for name in names:
        if runs and name != "none" and runs[-1][-1] != "none" and order[name] == order[runs[-1][-1]] + 1:
            runs[-1].append(name)
        else:
            runs.append([name])
    return ", ".join(
        run[0] if len(run) == 1 else f"{run[0]} {'to' if len(run) > 2 else 'and'} {run[-1]}" for run in runs
    )


def _against(summary: Frame, name: str, width: int) -> alt.LayerChart:
    """One measure against the window, the model without a window as a dashed line."""
    sized: Frame = summary[summary["window"].notna()]
    none: Frame = summary[summary["window"].isna()]
    data: Frame = pd.DataFrame({"window": sized["window"].astype(int), "y": sized[name]})
    data = data.assign(below=(sized["floored"] > 0) & (name == "distance"))
    if name == "accuracy":
        data = data.assign(low=sized["wilson_low"], high=sized["wilson_high"])
    first, last = int(data["window"].min()), int(data["window"].max())
    kind = "log" if last >= 10 * first else "linear"
    base = draw.rows(data).encode(
        x=alt.X(
            "window:Q",
            title="window w (keys seen)",
            scale=alt.Scale(type=kind, domain=[first, max(last, first + 1)], nice=False, padding=6),
            axis=alt.Axis(
                grid=False, format="d", values=_ticks(first, last) if kind == "log" else axes.whole_ticks(first, last)
            ),
        ),
        tooltip=["window:Q", alt.Tooltip("y:Q", format=".4g")],
    )
    y = alt.Y("y:Q", title=_WORDS.get(name), scale=_room(summary[name]))
    if name == "distance":
        y = draw.log_y(summary["distance"], _DISTANCE, field="y")
    colour = theme.colour(_LOOKS[_FRONT])
    layers: list[Any] = []
    if name == "accuracy":
        layers.append(base.mark_area(opacity=0.18, color=colour).encode(y=alt.Y("low:Q"), y2="high:Q"))
    points = _points(base.encode(y=y, color=alt.value(colour)), 24, "triangle-down")
    layers += [base.mark_line(color=colour).encode(y=y), *points]
    if len(none):
        level = alt.Chart(alt.InlineData(values=[{"y": float(none[name].iloc[0])}]))
        layers.append(level.mark_rule(strokeDash=[6, 4], color=theme.colour(_LOOKS[_NONE])).encode(y=alt.Y("y:Q")))
    return draw.layers(*layers, width=width, height=BELOW)


def _points(base: Any, size: int, smaller: str) -> list[Any]:
    """A circle each; where rounding is in the mean, a hollow triangle that points to smaller distances."""
    below = base.transform_filter("datum.below").mark_point(
        shape=smaller, size=52, filled=False, opacity=1, strokeWidth=1.2
    )
    return [base.transform_filter("!datum.below").mark_circle(size=size), below]


def _ticks(first: int, last: int) -> list[int]:
    return [2**power for power in range(20) if first <= 2**power <= last]


def _room(values: Any) -> alt.Scale:
    """A little more than the values; all of 0 to 1 for shares."""
    low, high = float(values.min()), float(values.max())
    if low >= 0 and high <= 1:
        return alt.Scale(domain=[0.0, 1.05], nice=False)
    room = 0.08 * (high - low) or 0.1
    return alt.Scale(domain=[low - room, high + room], nice=False)
