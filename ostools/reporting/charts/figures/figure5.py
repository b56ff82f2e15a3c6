"""Figure 5 as in the paper, four panels of distance against length; under them the second pair of (d), without theorem."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from ostools.experiments import Figure5
from ostools.ground.words import number, short_name
from ostools.measure.collapse.readings import NORM_WORDS, PIECES, SITE_WORDS, Reading
from ostools.measure.collapse.verdicts import Verdict
from ostools.reporting.charts.collapse.curves import jumps, model_limits
from ostools.reporting.charts.figures.deviations import shown_deviations
from ostools.reporting.findings.collapse import overflow_sentence
from ostools.reporting.look import axes, draw, theme
from ostools.results import Frame, frame_of

WIDTH, HEIGHT = 330, 190
_WORDS = {
    "a": "n ones",
    "b": "n digits, uniform but for a last 1, against one 1 more",
    "c": "n ones, to be copied",
    "d": "n ones to be copied, a comma after every third",
}
_APART = "one digit more, after a comma (111 and 111,1): no theorem"
_LINES: dict[str, tuple[str, list[float]]] = {
    "distance": ("measured distance (dots where it jumps)", [1, 0]),
    "noise": ("rounding noise of the difference", [1.5, 2.5]),
    "machine_line": ("machine line: one representable step", [7, 4]),
}
_QUOTED = 58  # letters of a prompt that a panel's title has room for


def figure_5_chart(result: Figure5) -> alt.VConcatChart:
    """Mean over heads with a band from the least to the greatest head, dtype by dtype, on one log axis for all panels.

    In (b) the darker band is the bootstrap interval of the mean over seeds. A pale strip covers the lengths at which a dtype
    hides the pair: in every seed, by the quantity that is drawn. Dotted lines stand where the model's training ends, and where
    the prompt reaches a sliding window or fills the context.
    """
    frame = frame_of(result)
    axes.require_finite(frame["mean"], "figure 5")
    low, below = _bottom(frame)
    groups = [group for _, group in frame.groupby(["panel", "pair"], sort=False)]
    y = _value_axis(frame, low)
    panels = [_panel(result, group, y, low) for group in groups]
    # The pair of no theorem has a row of its own.
    apart = [str(group["pair"].iloc[0]) != "theorem" for group in groups]
    main = [panel for panel, alone in zip(panels, apart, strict=True) if not alone]
    rows = [alt.hconcat(*main[start : start + 2], spacing=28) for start in range(0, len(main), 2)]
    rows += [alt.hconcat(panel) for panel, alone in zip(panels, apart, strict=True) if alone]
    title = alt.TitleParams(_title(result.reading, result.provenance.model), subtitle=_notes(result, below))
    return axes.themed(alt.vconcat(*rows, title=title, spacing=22))


def _title(reading: Reading, model: Any) -> str:
    return (
        f"Figure 5 on {short_name(model)}: {NORM_WORDS[reading.norm]} distance at {SITE_WORDS[reading.site]} of v and v*, "
        "its last token once more"
    )


def _notes(result: Figure5, below: dict[str, float]) -> list[str]:
    frame, reading = frame_of(result), result.reading
    pieces = PIECES[reading.per]
    bands, means, floors = [], [], []
    if pieces:
        bands.append(f"Line: mean over {pieces}. Pale band: least to greatest.")
    most = int(frame["seeds"].max())
    if most > 1:
        bands.append(f"In (b) line and band are over {most} draws of digits too.")
    if frame["interval_low"].notna().any():
        means.append("Dark band: 95% bootstrap interval of the mean over draws.")
    elif most > 1:
        means.append("The draws are too few for an interval.")
    if not result.verdicts.empty:
        means.append("Hidden: the float64 distance is below the rounding noise of the difference, both as drawn.")
    overflow = [name for name in result.verdicts["dtype"].unique() if name not in set(frame["dtype"])]
    if overflow:
        floors.append(overflow_sentence(overflow))
    if below:
        told = ", ".join(f"{dtype} at most {number(value)}" for dtype, value in below.items())
        floors.append(f"Below these axes: noise of {told}.")
    if ((frame["mean"] == 0) | (frame["head_minimum"] == 0)).any():
        bands.append("On the lower edge: exact zeros.")
    lines = [*shown_deviations(result.deviations), " ".join(bands), " ".join([*means, *floors])]
    return [line for line in lines if line]


def _bottom(frame: Frame) -> tuple[float, dict[str, float]]:
    """Where the log axis begins, and the greatest noise of each dtype that lies wholly below it.

    Floors far below every distance would leave the curves no room.
    """
    drawn = np.concatenate([frame[name].to_numpy(dtype=float) for name in ("mean", "head_minimum")])
    positive = drawn[drawn > 0]
    low = float(positive.min()) / 1.5 if len(positive) else 1e-6
    noise = frame[frame["pair_noise"].notna()].groupby("dtype", sort=False)["pair_noise"]
    floors = {str(dtype): (float(values.min()), float(values.max())) for dtype, values in noise}
    near = [least for least, most in floors.values() if most >= low / 10 and least > 0]
    low = min([low, *near])
    return low, {dtype: most for dtype, (_, most) in floors.items() if most < low}


def _value_axis(frame: Frame, low: float) -> alt.Y:
    high = float(frame["head_maximum"].max()) or 10 * low
    name = NORM_WORDS[str(frame["norm"].iloc[0])]
    return draw.log_y(pd.Series([low * 1.25, high]), f"{name} distance", field="value")


def _panel(result: Figure5, group: Frame, y: alt.Y, low: float) -> Any:
    panel, pair = str(group["panel"].iloc[0]), str(group["pair"].iloc[0])
    bands = _clipped(group.rename(columns={"mean": "value"}), low)
    x = axes.length_axis(frame_of(result)["length"], "length n (digits)")
    dtypes = list(dict.fromkeys(group["dtype"]))
    layers = [_band(bands, ("head_minimum", "head_maximum"), 0.13, x, y, dtypes)]
    if group["interval_low"].notna().all():
        layers.append(_band(bands, ("interval_low", "interval_high"), 0.32, x, y, dtypes))
    layers += [*_curves(group, low, x, y, dtypes), *_marks(result, panel, pair, x, dtypes)]
    chart: Any = alt.layer(*layers)
    return chart.properties(width=WIDTH, height=HEIGHT, title=_heading(result, panel, pair))


def _clipped(frame: Frame, low: float) -> Frame:
    """Zeros, and what lies below the axis, on its lower edge."""
    names = ["value", "head_minimum", "head_maximum", "interval_low", "interval_high"]
    return frame.assign(**{name: frame[name].clip(lower=low) for name in names})


def _band(rows: Frame, ends: tuple[str, str], opacity: float, x: alt.X, y: alt.Y, dtypes: list[str]) -> alt.Chart:
    data = rows[["length", "dtype", *ends]].rename(columns=dict(zip(ends, ("value", "high"), strict=True)))
    base = draw.rows(data)
    return base.mark_area(opacity=opacity, clip=True).encode(x=x, y=y, y2="high:Q", color=_hue(dtypes))


def _curves(group: Frame, low: float, x: alt.X, y: alt.Y, dtypes: list[str]) -> list[Any]:
    """The distance, and faintly the two floors; the first dtype is the broadest, for the others lie on top of it."""
    parts = [
        group[group[name].notna()].assign(value=group[name], quantity=quantity)
        for name, quantity in (("mean", "distance"), ("pair_noise", "noise"), ("machine_line", "machine_line"))
    ]
    data: Frame = pd.concat(parts)[["length", "dtype", "quantity", "value"]]
    data = data.loc[(data["quantity"] == "distance") | (data["value"] >= low)]
    data = data.assign(value=np.maximum(data["value"], low))
    dash = draw.dashes(_LINES, _LINES)
    tooltip = ["length:Q", "dtype:N", "quantity:N", draw.VALUE]
    base = draw.rows(data).encode(x=x, y=y, color=_hue(dtypes), tooltip=tooltip)
    floors = base.transform_filter("datum.quantity !== 'distance'").encode(strokeDash=dash)
    layers = [floors.mark_line(strokeWidth=0.9, clip=True)]
    dotted = any(jumps(curve["mean"]) for _, curve in group.groupby("dtype"))
    for dtype in dtypes:
        first = dtype == dtypes[0]
        curve = base.transform_filter(f"datum.quantity === 'distance' && datum.dtype === '{dtype}'")
        if dotted:
            layers.append(curve.mark_circle(size=12 if first else 6, opacity=1, clip=True))
        else:
            layers.append(curve.mark_line(strokeWidth=2.4 if first else 1.2, clip=True).encode(strokeDash=dash))
    return layers


def _marks(result: Figure5, panel: str, pair: str, x: alt.X, dtypes: list[str]) -> list[Any]:
    """Pale strips over the ranges that each dtype hides, and dotted lines at the model's own numbers."""
    spans = [
        {"length": span.first, "end": span.last, "dtype": dtype}
        for dtype, verdict in _hidden(result, panel, pair).items()
        for span in verdict.ranges
    ]
    marks: list[Any] = []
    if spans:
        base = draw.rows(pd.DataFrame(spans)).encode(x=x, color=_hue(dtypes))
        marks += [base.mark_rect(opacity=0.12).encode(x2="end:Q"), base.mark_rule(strokeWidth=1.2)]
    for place, limit in enumerate(model_limits(result.curves[panel])):
        base = draw.rows(pd.DataFrame([limit]))
        grey = alt.value(theme.colour("float64"))
        marks.append(base.mark_rule(strokeWidth=1, strokeDash=[1, 2]).encode(x=x, color=grey))
        words = base.mark_text(align="right", baseline="top", dx=-4, fontSize=9)
        marks.append(words.encode(x=x, y=alt.value(2 + 11 * place), text="words:N", color=grey))
    return marks


def _hidden(result: Figure5, panel: str, pair: str) -> dict[str, Verdict]:
    """The verdict of each dtype, all seeds together, on the quantity that is drawn."""
    reading = result.reading
    every = result.curves[panel].verdicts_over_seeds(reading.per, reading.norm).items()
    return {dtype: verdict for (kind, dtype, site, _), verdict in every if (kind, site) == (pair, reading.site)}


def _heading(result: Figure5, panel: str, pair: str) -> alt.TitleParams:
    prompt = str(result.provenance.parameters["prompts"][panel])
    shown = prompt if len(prompt) <= _QUOTED else f"…{prompt[-_QUOTED:]}"
    name = f"({panel}) {_WORDS[panel] if pair == 'theorem' else _APART}"
    told = [f"{dtype}: {verdict.where}" for dtype, verdict in _hidden(result, panel, pair).items()]
    lines = [
        f"“{theme.inert(shown)}” (n = 6)",
        *([f"hidden n: {'; '.join(told)}"] if told and pair == "theorem" else []),
    ]
    return alt.TitleParams(name, subtitle=lines, fontSize=11, subtitleFontSize=10, offset=6, frame="group")


def _hue(dtypes: list[str]) -> alt.Color:
    return draw.hue("dtype", dict(zip(dtypes, theme.colours(dtypes), strict=True)), columns=1, symbolStrokeWidth=4)
