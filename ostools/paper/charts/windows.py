"""Window sizes on a Pareto front: answers against collapse."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np

from ostools.ground.words import title_of
from ostools.paper.windows import WindowStudy
from ostools.reporting.forms import bars, curve
from ostools.reporting.style import axes, draw, theme
from ostools.results import Frame

_TRADE_WIDTH, _TRADE_HEIGHT, _BELOW = 340, 240, 130
_FRONT, _DOMINATED, _NONE = "on the Pareto front", "dominated", "no window"
_FRONT_LOOKS = {_FRONT: "Pareto", _DOMINATED: "dominated", _NONE: "unmitigated"}
_OBJECTIVES = {
    "accuracy": "share of right answers",
    "log_probability": "log p of the right line (nats)",
}
_FRONTS = {"accuracy": "front", "log_probability": "front_probability"}
_DISTANCE = "L2 distance at y, float64"
_ROUNDING_NOTE = axes.ROUNDING_NOTE


def windows_chart(result: WindowStudy) -> Any:
    """Above: accuracy and log probability against the float64 distance, the windows on the front
    labelled and joined.

    Below: the three against the window; the dashed line is no window. A distance with rounding in
    it has a triangle.
    """
    summary: Any = result.summary.assign(zero=result.summary["floored"] > 0)
    objectives = [name for name in _OBJECTIVES if name == "accuracy" or summary[name].notna().all()]
    above = alt.hconcat(*(_trade(summary, name) for name in objectives), spacing=30)
    width = (len(objectives) * _TRADE_WIDTH - 60) // (len(objectives) + 1)
    below = alt.hconcat(
        *(_against(summary, name, width) for name in (*objectives, "distance")), spacing=30
    )
    title = f"Sliding windows on {result.provenance.parameters['task']}: answers against collapse"
    return draw.figure([[above], [below]], title, _windows_notes(result), between=26)


def _windows_notes(result: WindowStudy) -> list[str]:
    """How it was measured; what the marks are; which windows are on the front."""
    parameters = result.provenance.parameters
    lengths, seeds = parameters["lengths"], len(parameters["seeds"])
    at = (
        f"n = {lengths[0]}"
        if len(lengths) == 1
        else f"n from {lengths[0]} to {lengths[-1]} ({len(lengths)} lengths)"
    )
    of = f"layers {parameters['layers']}" if parameters["layers"] != "all" else "all layers"
    how = f"{title_of(result.provenance.model)}; {at}, {seeds} seed{'s' if seeds > 1 else ''}; windows on {of}, "
    how += f"{parameters['sinks'] or 'no'} sinks."
    if parameters["beyond_training"]:
        how += " Every length is beyond the trained ones."
    elif not bool(result.frame["within_training"].all()):
        how += " Lengths beyond training are left out."
    marks = "Distance: of the questions of n and n + 1 items, geometric mean. Bands: 95% (Wilson)."
    marks += f" {_ROUNDING_NOTE}" if bool((result.summary["floored"] > 0).any()) else ""
    return [how, marks, *windows_findings(result)]


def windows_findings(result: WindowStudy) -> list[str]:
    """The windows that no other one beats in both the answers and the distance."""
    summary: Any = result.summary
    sizes = _window_names(summary)
    words = {"accuracy": "right answers", "log_probability": "log p"}
    fronts = [
        f"{', '.join(sizes[summary[column].astype(bool)])} ({words[objective]})"
        for objective, column in _FRONTS.items()
        if summary[column].any()
    ]
    return [f"On the front of the point estimates: {'; '.join(fronts)}."]


def _window_names(summary: Frame) -> Any:
    return summary["window"].astype("string").fillna("no window")


def _measure_axis(summary: Frame, name: str) -> dict[str, Any]:
    if name == "distance":
        return axes.log_channel(summary["distance"], _DISTANCE)
    if name == "accuracy":
        return axes.linear(_OBJECTIVES[name], (0, 1.05))
    return axes.linear(_OBJECTIVES[name]) | {"scale": alt.Scale(zero=False, padding=8)}


def _trade(summary: Frame, objective: str) -> alt.LayerChart:
    """A task's measure against the distance; the points of the front named by their windows."""
    front = summary[_FRONTS[objective]].astype(bool)
    kind = front.map({True: _FRONT, False: _DOMINATED}).where(summary["window"].notna(), _NONE)
    across, y = _measure_axis(summary, "distance"), _measure_axis(summary, objective)
    across["title"] = f"{_DISTANCE} (right: less collapse)"
    rows: Frame = summary[["distance", "zero"]].assign(
        value=summary[objective], kind=kind, window=_window_names(summary)
    )
    x, hue = (
        alt.X("distance:Q", **across),
        draw.hue("kind", _FRONT_LOOKS, columns=3, symbolType="circle", symbolSize=60),
    )
    marks = curve(
        rows[front], x, y, alt.value(theme.colour("Pareto")), width=1.4, interpolate="step-before"
    )
    # The model without a window lies below the others, and larger: a window that changes nothing
    # does not hide it.
    for part, size in ((rows[kind == _NONE], 150), (rows[kind != _NONE], 52)):
        marks += bars(part, x, y, hue, size=size)
    names = rows[front].groupby(["distance", "value"], as_index=False)["window"].agg(", ".join)
    side = alt.expr(
        f"datum.distance > {float(np.sqrt(np.prod(across['scale']['domain'])))} ? 'right' : 'left'"
    )
    words = draw.rows(names).mark_text(dy=-10, align=side, fontSize=10)
    marks.append(words.encode(x=x, y=alt.Y("value:Q", **y), text="window:N"))
    return draw.panel(marks, _TRADE_WIDTH, _TRADE_HEIGHT)


def _against(summary: Frame, name: str, width: int) -> alt.LayerChart:
    """One measure against the window, the model without a window as a dashed line."""
    sized: Frame = summary[summary["window"].notna()]
    none: Frame = summary[summary["window"].isna()]
    rows: Frame = sized[["wilson_low", "wilson_high"]].assign(
        window=sized["window"].astype(int), value=sized[name]
    )
    rows = rows.assign(zero=sized["zero"] & (name == "distance"))
    x = axes.length_axis(
        rows["window"], "window w (keys seen)", "window", 6, values=rows["window"].tolist()
    )
    bands = [("wilson_low", "wilson_high", 0.18)] if name == "accuracy" else []
    colour = alt.value(theme.colour("Pareto"))
    marks = curve(rows, x, _measure_axis(summary, name), colour, bands=bands, points=24, width=1.8)
    if len(none):
        looks: dict[str, Any] = {"colour": theme.colour("unmitigated"), "dash": [6, 4]}
        marks += draw.line_at("y", "value", float(none[name].iloc[0]), **looks)
    return draw.panel(marks, width, _BELOW)
