"""Charts over the cells of a sweep: one task on one model, mitigations in colour, dtypes side by side.

What a measurement of its own has a chart for (collapse) is drawn by that; here stands what several cells have in common.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from ostools.reporting.charts.sensitivity.over_tokens import NORMS, SHAPE
from ostools.reporting.look import axes, theme
from ostools.reporting.look.answer_marks import length_axis, training_end
from ostools.results import Frame

COLUMNS = 2
_LEGEND = alt.Legend(title=None, columns=2, symbolStrokeWidth=2)
WIDTH, HEIGHT, BELOW = 270, 170, 120
KIND_TITLES = {
    "certified": "certified bounds",
    "paper": "the paper's forms (not bounds)",
}
"""A panel a kind: what is certified and what is no bound never stand on one axis."""


_MEANT = {"operator": "of the operator norm", "frobenius": "of the Frobenius norm", SHAPE: "scale unknown"}


def answers_chart(summaries: Frame, title: str, notes: Sequence[str], trained: int | None) -> alt.VConcatChart:
    """Accuracy over length with its Wilson interval, where there is one, and below it the mean log-probability of the right
    line: a column a dtype, a colour a mitigation; hollow where the mitigation changed nothing.

    summaries: mitigation, dtype, length, accuracy, wilson_low, wilson_high, right, asked, log_probability, idle.
    """
    names = list(dict.fromkeys(summaries["mitigation"]))
    dtypes = list(dict.fromkeys(summaries["dtype"]))
    known = bool(summaries["log_probability"].notna().any())
    rows = []
    for dtype in dtypes:
        here = summaries[summaries["dtype"] == dtype]
        panels = [_accuracy(here, names, dtype, trained, last=not known)]
        if known:
            panels.append(_log_probability(here, names, summaries["log_probability"], trained))
        rows.append(alt.vconcat(*panels, spacing=10))
    return _grid(rows, title, notes)


def _grid(panels: Sequence[Any], title: str, notes: Sequence[str], *, alike: bool = True) -> alt.VConcatChart:
    """Two panels a row; `alike`: colours and dashes mean the same in all of them."""
    rows = [alt.hconcat(*panels[start : start + COLUMNS], spacing=24) for start in range(0, len(panels), COLUMNS)]
    if not alike:
        rows = [row.resolve_scale(color="independent") for row in rows]
    chart = alt.vconcat(*rows, spacing=20, title=alt.TitleParams(title, subtitle=list(notes)))
    scales: Any = {"color": "shared", "strokeDash": "shared"} if alike else {"color": "independent"}
    return axes.themed(chart.resolve_scale(**scales))


def _hue(field: str, names: Sequence[str], colours: Sequence[str]) -> alt.Color:
    return alt.Color(f"{field}:N", scale=alt.Scale(domain=list(names), range=list(colours)), legend=_LEGEND)


def _panel(layers: Sequence[Any], title: str) -> Any:
    layered: Any = alt.layer(*layers)
    heading = alt.TitleParams(theme.visible(title), fontSize=11, fontWeight="normal", offset=6, frame="group")
    return layered.properties(width=WIDTH, height=HEIGHT, title=heading)


def _accuracy(rows: Frame, names: list[str], dtype: str, trained: int | None, last: bool) -> Any:
    x = length_axis(rows["length"], "sequence length (items)" if last else None, labels=last)
    scale = alt.Scale(domain=[0, 1], nice=False, padding=5)
    axis = alt.Axis(values=[0, 0.25, 0.5, 0.75, 1], format=".0%")
    hue = _hue("mitigation", names, theme.colours(names))
    data = rows[["mitigation", "length", "accuracy", "right", "asked", "idle"]]
    y = alt.Y("accuracy:Q", title="right answers", scale=scale, axis=axis)
    tooltip = ["mitigation:N", "length:Q", "right:Q", "asked:Q", alt.Tooltip("accuracy:Q", format=".1%")]
    layers = _curves(data, names, x, y, tooltip)
    bands = rows[["mitigation", "length", "wilson_low", "wilson_high"]].dropna()
    if len(bands):
        shown = axes.unfolded(axes.chart(bands), bands).encode(x=x, color=hue)
        ends = shown.encode(y=alt.Y("wilson_low:Q", scale=scale, axis=axis, title="right answers"), y2="wilson_high:Q")
        layers.insert(0, ends.mark_rule(strokeWidth=4, opacity=0.25))
    return _panel([*layers, *training_end(trained, rows["length"], 0.3 * HEIGHT)], dtype)


def _log_probability(rows: Frame, names: list[str], everywhere: Any, trained: int | None) -> Any:
    """On one scale in all panels."""
    rows = rows[["mitigation", "length", "log_probability", "idle"]].dropna()
    low, high = float(everywhere.min()), float(everywhere.max())
    room = 0.05 * (high - low) or 1.0
    x = length_axis(rows["length"] if len(rows) else pd.Series([1, 2]), "sequence length (items)")
    y = alt.Y(
        "log_probability:Q",
        title="mean log p (nats)",
        scale=alt.Scale(domain=[low - room, high + room], nice=False),
        axis=alt.Axis(tickCount=5),
    )
    tooltip = ["mitigation:N", "length:Q", alt.Tooltip("log_probability:Q", format=".4g")]
    layers = _curves(rows, names, x, y, tooltip)
    layered: Any = alt.layer(*layers, *(training_end(trained, rows["length"], None) if len(rows) else []))
    return layered.properties(width=WIDTH, height=BELOW)


def _curves(rows: Frame, names: list[str], x: alt.X, y: alt.Y, tooltip: list[Any]) -> list[Any]:
    """A line a mitigation: none solid and the others broken, so that curves that coincide are both seen."""
    known = [[1, 0], [6, 4], [2, 3], [8, 3, 2, 3], [12, 4]]
    scale = alt.Scale(domain=names, range=[known[place % len(known)] for place in range(len(names))])
    hue = _hue("mitigation", names, theme.colours(names))
    base = axes.unfolded(axes.chart(rows), rows).encode(x=x, color=hue)
    hollow = base.transform_filter("datum.idle").mark_point(
        size=30, shape="circle", fill=theme.LIGHT_GROUND, opacity=1, strokeWidth=1.4
    )
    full = base.transform_filter("!datum.idle").mark_circle(size=28, opacity=1)
    dash = alt.StrokeDash("mitigation:N", scale=scale, legend=_LEGEND)
    return [
        base.mark_line(strokeWidth=1.6).encode(y=y, strokeDash=dash),
        *(points.encode(y=y, tooltip=tooltip) for points in (full, hollow)),
    ]


def profiles_chart(rows: Frame, norm: str, title: str, notes: Sequence[str]) -> alt.VConcatChart:
    """Sensitivity over the place of a token in its prompt, from the first (0) to the last (1): a line a length, a panel a
    condition. rows: panel, length, place, token, value."""
    shown, floor = axes.floored(rows)
    axes.require_finite(shown["value"], "a sensitivity")
    scale, axis = axes.log_axis(shown["shown"], floor)
    lengths = sorted(set(shown["length"]))
    shown = shown.assign(items=[f"{length} items" for length in shown["length"]])
    names = [f"{length} items" for length in lengths]
    panels = []
    for panel in dict.fromkeys(shown["panel"]):
        here = shown[shown["panel"] == panel].drop(columns="panel")
        base = axes.unfolded(axes.chart(here), here).encode(
            x=alt.X(
                "place:Q",
                title="place in the prompt, first token to last",
                scale=alt.Scale(domain=[0, 1], nice=False),
                axis=alt.Axis(grid=False, values=[0, 0.25, 0.5, 0.75, 1], format=".2~f"),
            ),
            y=alt.Y("shown:Q", title=NORMS[norm], scale=scale, axis=axis),
            color=_hue("items", names, theme.ordered(len(names))),
        )
        tooltip = ["items:N", "token:N", alt.Tooltip("value:Q", format=".4g")]
        layers = [base.mark_line(strokeWidth=1.2), base.mark_circle(size=14, opacity=0).encode(tooltip=tooltip)]
        if floor is not None:
            layers.append(axes.zero_marks(base))
        panels.append(_panel(layers, str(panel)))
    zeros = [axes.ZERO_NOTE] if floor is not None else []
    return _grid(panels, title, [*notes, *zeros])


def path_sums_chart(rows: Frame, title: str, notes: Sequence[str]) -> alt.VConcatChart:
    """Path sums against length, the median over a prompt's tokens and a band over the middle half of them: a row a condition,
    a panel a kind and a norm. rows: panel, kind, norm, variant, length, value, low, high."""
    panels = []
    for (panel, kind, norm), here in rows.groupby(["panel", "kind", "norm"], sort=False):
        names = list(dict.fromkeys(here["variant"]))
        shown, floor = axes.floored(here.drop(columns=["panel", "kind", "norm"]))
        scale, axis = axes.log_axis(
            pd.concat([shown["shown"], shown["low"], shown["high"]]).loc[lambda v: v > 0], floor
        )
        hue = _hue("variant", names, theme.colours(names))
        dash = alt.value(theme.DASHES[str(kind)])
        base = axes.unfolded(axes.chart(shown), shown).encode(
            x=length_axis(shown["length"], "sequence length (items)"), color=hue
        )
        y = alt.Y("shown:Q", title=f"median; {_MEANT[str(norm)]}", scale=scale, axis=axis)
        tooltip = [
            "variant:N",
            "length:Q",
            *(alt.Tooltip(f"{name}:Q", format=".4g") for name in ("value", "low", "high")),
        ]
        layers = [
            base.mark_line(strokeWidth=1.6).encode(y=y, strokeDash=dash),
            base.mark_circle(size=24).encode(y=y, tooltip=tooltip),
        ]
        if bool((shown["low"] > 0).all()):
            layers.insert(
                0, base.mark_area(opacity=0.15).encode(y=alt.Y("low:Q", scale=scale, axis=axis, title=""), y2="high:Q")
            )
        panels.append(_panel(layers, f"{KIND_TITLES[str(kind)]}, {panel}"))
    return _grid(panels, title, notes, alike=False)
