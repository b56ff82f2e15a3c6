"""Ablations drawn: the predicted effect of every part against the real one, and where in the model the real effects are."""

from __future__ import annotations

import math
from typing import Any

import altair as alt
import pandas as pd

from ostools.experiments.ablation.ablation import Ablation
from ostools.reporting.findings.ablation import WORDS
from ostools.reporting.forms.bars import bars
from ostools.reporting.forms.bars import names as bars_names
from ostools.reporting.forms.heat import layers_by
from ostools.reporting.look import draw, theme
from ostools.results import Column, Frame

QUANTITIES = {
    "frobenius_norm": "||J|| (Frobenius) of the tokens that carry the answer",
    "pair_distance": "||y - y*|| of n and n + 1 items",
    "log_probability": "log p of the right answer, nats",
}
"""What is drawn; the operator norm stands in the table."""
_LABELLED = 3
_BARS = 12
_NUMBERED = 64  # more cells than that get no number
_SIDE = 230
_LAYERS_NAMED = 9


def ablation_chart(result: Ablation) -> Any:
    """A row a quantity: left predicted against real with the diagonal, right the real effects, mean over the prompts."""
    frame: Any = result.frame
    rows = [
        _row(frame[frame["quantity"] == quantity], words)
        for quantity, words in QUANTITIES.items()
        if (frame["quantity"] == quantity).any()
    ]
    what, method = frame["what"].iloc[0], frame["method"].iloc[0]
    prompts = frame[["task", "length", "seed"]].drop_duplicates()
    lengths = ", ".join(str(length) for length in dict.fromkeys(prompts["length"].dropna()))
    where = str(prompts["task"].iloc[0]) + (f", n = {lengths}" if lengths else "")
    seeds = prompts["seed"].dropna().nunique()
    effect = "Effect: the value with the part out, minus the value with nothing out"
    effect += f"; {seeds} seeds" if seeds > 1 else ""
    notes = [*_not_believed(result), f"{effect}. On the diagonal the first-order prediction is right."]
    title = f"Taking {what} out ({method}), one at a time: {where}"
    return draw.figure(rows, title, notes, spacing=34, between=26, color="independent")


def _not_believed(result: Ablation) -> list[str]:
    """A line for each quantity that is drawn whose first-order effects are not believed on some prompt."""
    table = result.agreement
    wrong: Frame = table[table["believed"].isin([False]) & table["quantity"].isin(QUANTITIES)]
    lines = []
    for quantity, rows in wrong.groupby("quantity", sort=False):
        more = f" ({len(rows)} of {(table['quantity'] == quantity).sum()} prompts)" if len(rows) > 1 else ""
        lines.append(f"First order of {WORDS[str(quantity)]}: {rows['words'].iloc[0]}{more}")
    return lines


def _row(data: Frame, words: str) -> list[Any]:
    what = data["what"].iloc[0]
    return [_scatter(data, words), _bars(data) if what == "edges" else _heat(data, what)]


def _scatter(data: Frame, words: str) -> Any:
    """One square scale for both, so that a prediction that is too small is seen to be."""
    real, predicted = data["effect"], data["predicted_effect"]
    low, high = min(real.min(), predicted.min(), 0.0), max(real.max(), predicted.max(), 0.0)
    margin = 0.06 * (high - low) or 1.0
    scale = alt.Scale(domain=[float(low - margin), float(high + margin)], nice=False)
    points = data[["target", "layer", "effect", "predicted_effect"]].reset_index(drop=True)
    named = _named(points, 0.06 * (high - low))
    left = points["predicted_effect"] > (low + high) / 2
    points = points.assign(label=points["target"].where(named, ""), left=left)
    base = draw.rows(points).encode(
        x=alt.X("predicted_effect:Q", title="predicted effect (first order)", scale=scale, axis=alt.Axis(tickCount=4)),
        y=alt.Y("effect:Q", title="real effect", scale=scale, axis=alt.Axis(tickCount=4)),
        tooltip=["target:N", alt.Tooltip("effect:Q", format=".4g"), alt.Tooltip("predicted_effect:Q", format=".4g")],
    )
    ends = pd.DataFrame({"at": [float(low - margin), float(high + margin)]})
    diagonal = draw.rows(ends).mark_line(strokeDash=[4, 3], strokeWidth=1, color=theme.colour("float64"))
    x, y = alt.X("at:Q", scale=scale), alt.Y("at:Q", scale=scale)
    marks = base.mark_circle(size=46).encode(color=_layer_colour(points["layer"].astype(int)))
    names = [
        base.transform_filter(f"datum.left == {word}")
        .mark_text(align=side, dx=7 * sign, dy=-5, fontSize=10)
        .encode(text="label:N")
        for word, side, sign in (("false", "left", 1), ("true", "right", -1))
    ]
    chart = alt.layer(diagonal.encode(x=x, y=y), marks, *names)
    return chart.properties(width=_SIDE, height=_SIDE, title=draw.heading(words))


def _named(points: Frame, apart: float) -> Column:
    """Which points get a name: the greatest real effects, as far as their names would not lie on each other."""
    size = points["effect"].abs()
    chosen: list[int] = []
    for index in size.sort_values(ascending=False).index[:_LABELLED]:
        near = (abs(points.loc[index, "effect"] - points.loc[other, "effect"]) < apart for other in chosen)
        if size[index] > 0.1 * size.max() and not any(near):
            chosen.append(index)
    return points.index.to_series().isin(chosen)


def _layer_colour(layers: Column) -> alt.Color:
    """Few layers are named one by one."""
    last = int(layers.max())
    if last < _LAYERS_NAMED:
        legend = alt.Legend(title="layer", orient="right", symbolType="circle", symbolSize=60, columns=1, offset=8)
        return alt.Color(
            "layer:O", scale=alt.Scale(domain=list(range(last + 1)), range=theme.ordered(last + 1)), legend=legend
        )
    legend = alt.Legend(title="layer", orient="right", gradientLength=120, format="d", offset=8)
    return alt.Color("layer:Q", scale=alt.Scale(domain=[0, last], range=theme.ordered(7)), legend=legend)


def _heat(data: Frame, what: str) -> Any:
    """The real effects, red where taking the part out makes the number smaller."""
    column = "head" if what == "heads" else "part"
    mean = data.groupby(["layer", column], as_index=False)["effect"].mean().rename(columns={"effect": "value"})
    largest = float(mean["value"].abs().max()) or 1.0
    scale = alt.Scale(scheme="redblue", domain=[-largest, largest])
    columns, layers = mean[column].nunique(), int(mean["layer"].max()) + 1
    # Where white reads better than black on this scheme.
    dark = f"datum.value < {-0.735 * largest} || datum.value > {0.79 * largest}"
    digits = f".{max(1, 1 - math.floor(math.log10(largest)))}f" if columns * layers <= _NUMBERED else ""
    chart = draw.layers(*layers_by(mean, column, column, scale, light=dark, digits=digits))
    width = min(_SIDE, (92 if what == "layers" else 46) * columns)
    return chart.properties(width=width, height=_SIDE, title=draw.heading(_real(data)))


def _real(data: Frame) -> str:
    several = len(data[["task", "length", "seed"]].drop_duplicates()) > 1
    return "real effect, mean over the prompts" if several else "real effect"


def _bars(data: Frame) -> Any:
    """Edges have no grid: those with the greatest effects, a bar each, the prediction as a stroke across it."""
    mean = data.groupby("target", as_index=False)[["effect", "predicted_effect"]].mean()
    order = mean["effect"].abs().sort_values(ascending=False).index[:_BARS]
    rows = mean.loc[order].rename(columns={"target": "name", "effect": "value"})
    names = bars_names(rows["name"].tolist(), title="layer.head: query → key")
    value = {"title": "real effect (bar), predicted (stroke)", "axis": alt.Axis(tickCount=3)}
    marks = bars(rows, names, value, alt.value(theme.colour("full")), height=9)
    strokes = draw.rows(rows).mark_tick(color=theme.colour("first-order"), thickness=2.5, size=15)
    marks.append(strokes.encode(x="predicted_effect:Q", y=names))
    title = draw.heading(f"{_real(data)}, the {len(rows)} greatest")
    return draw.layers(*marks, width=_SIDE, height=_SIDE, title=title)
