"""The lemmas in small panels: what was computed, its bound or prediction, and what is left of it without a hypothesis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import altair as alt

from ostools.experiments import TheoryChecks
from ostools.reporting.look import axes, draw, theme
from ostools.results import Frame

_COLUMNS = 3
_WIDTH, _HEIGHT = 250, 170
_DOTTED = 60
"""Curves with more points than this are drawn without dots."""
_PALETTE = ("full", "frozen", "local", "proof", "first-order", "rollout", "multi-head", "theorem-5.1")


@dataclass(frozen=True)
class Panel:
    """A panel's words and axes. `rules`: predictions are places on the x axis, and so vertical lines."""

    title: str
    x: str
    y: str
    log_x: bool = True
    log_y: bool = True
    rules: bool = False


PANELS = {
    "B.1": Panel("one more token takes weight from the last", "n", "weight of the last, less that of n + 1"),
    "4.1/B.2": Panel("noise that vanishes", "n", "delta = sum |y − y*|"),
    "B.4": Panel("sequences that never come closer", "n (even)", "delta = sum |y − y*|", log_y=False),
    "B.6": Panel(
        "how often 1 is an eigenvalue", "tokens i > 1 with A_ii = 1", "multiplicity of 1", log_x=False, log_y=False
    ),
    "B.7": Panel("products stay row-stochastic, triangular", "matrices multiplied", "largest error", log_x=False),
    "5.2/B.8": Panel("powers of (Λ + I) / 2 move all to token 1", "L", "mass elsewhere, last token", log_x=False),
    "6.1/B.9": Panel("one ratio, one representation per type", "layers", "spread within a type, relative", log_x=False),
    "6.2/B.10": Panel(
        "representations that can be told apart", "counted tokens n", "met so far", log_x=False, log_y=False
    ),
    "windows": Panel(
        "window w = 3 in every layer, RoPE", "copies c of one token", "step to c + 1, relative", log_x=False, rules=True
    ),
}


def theory_chart(result: TheoryChecks) -> alt.VConcatChart:
    """A panel per lemma. Solid: computed; dashed: a certified bound; dash-dotted: what the statement predicts."""
    lemmas = list(dict.fromkeys(result.frame["lemma"]))
    panels = [_panel(lemma, PANELS[lemma], result) for lemma in lemmas]
    rows = [
        alt.hconcat(*panels[start : start + _COLUMNS], spacing=36).resolve_scale(color="independent")
        for start in range(0, len(panels), _COLUMNS)
    ]
    values: Any = result.curves["value"]
    zeros = [axes.ZERO_NOTE] if bool((values == 0).any()) else []
    kinds = "Solid: computed. Dashed: certified bound. Dash-dotted: what the statement predicts."
    title = alt.TitleParams("The paper's lemmas on numbers", subtitle=[kinds, *zeros])
    chart = alt.vconcat(*rows, title=title, spacing=26).resolve_scale(color="independent")
    return axes.themed(chart)


def _panel(lemma: str, panel: Panel, result: TheoryChecks) -> Any:
    curves: Any = result.curves
    checks: Any = result.frame
    rows: Frame = curves[curves["lemma"] == lemma]
    axes.require_finite(rows["value"], f"the curve of {lemma}")
    floor = None
    rows = rows.assign(shown=rows["value"], zero=False)
    if panel.log_y:
        rows, floor = axes.floored(rows)
    rows = rows[["series", "kind", "x", "value", "shown", "zero"]]
    base = _base(rows, panel, floor)
    solid = base.transform_filter("datum.kind === 'measured'")
    layers = [solid.mark_line(strokeWidth=1.6)]
    said = set(rows["kind"])
    if int(rows["series"].value_counts().max()) <= _DOTTED:
        layers.append(solid.transform_filter("!datum.zero").mark_circle(size=14))
    for kind in [kind for kind in ("certified", "predicted") if kind in said]:
        part = base.transform_filter(f"datum.kind === '{kind}'")
        if panel.rules:
            rule = part.mark_rule(strokeWidth=1.2, strokeDash=theme.DASHES[kind])
            layers.append(rule.encode(y=alt.value(0), y2=alt.value(_HEIGHT)))
        else:
            layers.append(part.mark_line(strokeWidth=1.2, strokeDash=theme.DASHES[kind]))
    layers += draw.zeros(base, floor)
    passed = bool(checks[checks["lemma"] == lemma]["passed"].all())
    words = f"{lemma}: {panel.title}" + ("" if passed else "  (FAILED)")
    title = draw.heading(words)
    return axes.unfolded(alt.layer(*layers), rows).properties(width=_WIDTH, height=_HEIGHT, title=title)


def _base(rows: Frame, panel: Panel, floor: float | None) -> alt.Chart:
    series = list(dict.fromkeys(rows["series"]))
    colours = dict(zip(series, map(theme.colour, _PALETTE), strict=False))
    legend = {"columns": 1 if len(series) < 5 else 2, "symbolStrokeWidth": 3, "symbolSize": 160, "offset": 6}
    if panel.log_y:
        y_scale, y_axis = axes.log_axis(rows["shown"], floor)
    else:
        y_scale, y_axis = alt.Scale(zero=True), alt.Axis()
    return axes.chart(rows).encode(
        x=_x(rows, panel),
        y=alt.Y("shown:Q", title=panel.y, scale=y_scale, axis=y_axis),
        color=draw.hue("series", colours, **legend),
        detail=["kind:N"],
        tooltip=["series:N", "kind:N", alt.Tooltip("x:Q", title=panel.x), draw.VALUE],
    )


def _x(rows: Frame, panel: Panel) -> alt.X:
    first, last = float(rows["x"].min()), float(rows["x"].max())
    if not panel.log_x:
        axis = alt.Axis(grid=False, format="d", values=axes.whole_ticks(int(min(first, 1.0)), int(last)))
        return alt.X("x:Q", title=panel.x, scale=alt.Scale(domain=[min(first, 1.0), last], nice=False), axis=axis)
    scale = alt.Scale(type="log", domain=[first, max(last, first + 1.0)], nice=False)
    powers = [2**power for power in range(14)] if last <= 16 else [10**power for power in range(7)]
    axis = alt.Axis(grid=False, format=",d", values=[value for value in powers if first <= value <= last])
    return alt.X("x:Q", title=panel.x, scale=scale, axis=axis)
