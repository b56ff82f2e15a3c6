"""What each part of a model, or each edge, contributes: first-order effects against real ones."""

from __future__ import annotations

import math

import altair as alt
import pandas as pd

from ostools.measure.ablation.ablation import Ablation
from ostools.reporting.findings.effects import QUANTITY_WORDS
from ostools.reporting.forms import layers_by
from ostools.reporting.style import axes, draw, theme
from ostools.reporting.style.theme import Looks
from ostools.results import Chart, Frame

_QUANTITIES = {
    "frobenius_norm": "||J|| (Frobenius) of the tokens that carry the answer",
    "pair_distance": "||y - y*|| of n and n + 1 items",
    "log_probability": "log p of the answer, nats",
    "logit_difference": "difference of the two logits",
}
"""What is drawn; the operator norm stands in the table."""
_NUMBERED = 64  # more cells than that get no number
_SIDE = 230


def ablation_chart(result: Ablation) -> Chart:
    """A row a quantity: left predicted against real with the diagonal, right the real effects, mean
    over the prompts. Edges have no grid, and the left panel alone.
    """
    frame: Frame = result.frame
    rows = [
        _quantity_row(frame[frame["quantity"] == quantity], words)
        for quantity, words in _QUANTITIES.items()
        if (frame["quantity"] == quantity).any()
    ]
    what = frame["what"].iloc[0]
    prompts = frame[["task", "length", "seed"]].drop_duplicates()
    lengths = ", ".join(str(length) for length in dict.fromkeys(prompts["length"].dropna()))
    where = str(prompts["task"].iloc[0]) + (f", n = {lengths}" if lengths else "")
    seeds = prompts["seed"].dropna().nunique()
    effect = "Effect: the value with the part out, minus the value with nothing out"
    effect += f"; {seeds} seeds" if seeds > 1 else ""
    notes = [
        *_not_believed(result),
        f"{effect}. On the diagonal the first-order prediction is right.",
    ]
    title = f"Taking {what} out, one at a time: {where}"
    return draw.figure(rows, title, notes, spacing=34, between=26, color="independent")


def _not_believed(result: Ablation) -> list[str]:
    """A line for each quantity that is drawn whose first-order effects are not believed on some
    prompt.
    """
    table = result.agreement
    wrong: Frame = table[table["believed"].isin([False]) & table["quantity"].isin(_QUANTITIES)]
    return [
        f"First order of {QUANTITY_WORDS[str(quantity)]}: {rows['words'].iloc[0]}"
        + f" ({len(rows)} of {(table['quantity'] == quantity).sum()} prompts)" * (len(rows) > 1)
        for quantity, rows in wrong.groupby("quantity", sort=False)
    ]


def _quantity_row(data: Frame, words: str) -> list[alt.LayerChart]:
    what = data["what"].iloc[0]
    return [_scatter(data, words), *([_effect_map(data, what)] if what != "edges" else [])]


def _scatter(data: Frame, words: str) -> alt.LayerChart:
    """One square scale for both, so that a prediction that is too small is seen to be."""
    effects = data[["predicted_effect", "effect"]].to_numpy()
    low, high = min(effects.min(), 0.0), max(effects.max(), 0.0)
    margin = 0.06 * (high - low) or 1.0
    ends = (float(low - margin), float(high + margin))
    x, y = (
        axes.linear(title, ends, tickCount=4, grid=True)
        for title in ("predicted effect (first order)", "real effect")
    )
    places: Looks = {"x": alt.X("predicted_effect:Q", **x), "y": alt.Y("effect:Q", **y)}
    points = data[["target", "layer", "effect", "predicted_effect"]]
    hue = draw.layer_hue(int(points["layer"].max()), symbolType="circle", symbolSize=60)
    circles = draw.rows(points).mark_circle(size=46)
    marks = circles.encode(color=hue, tooltip=draw.tooltips(points), **places)
    line = draw.rows(pd.DataFrame({"predicted_effect": ends, "effect": ends}))
    diagonal = line.mark_line(strokeDash=[4, 3], strokeWidth=1, color=theme.colour("float64"))
    return draw.panel([diagonal.encode(**places), marks], _SIDE, _SIDE, words)


def _effect_map(data: Frame, what: str) -> alt.LayerChart:
    """The real effects, red where taking the part out makes the number smaller."""
    column = "head" if what == "heads" else "part"
    mean = data.groupby(["layer", column], as_index=False)["effect"].mean()
    mean = mean.rename(columns={"effect": "value"})
    largest = float(mean["value"].abs().max()) or 1.0
    scale = alt.Scale(scheme="redblue", domain=[-largest, largest])
    columns, layers = mean[column].nunique(), int(mean["layer"].max()) + 1
    # Where white reads better than black on this scheme.
    dark = f"datum.value < {-0.735 * largest} || datum.value > {0.79 * largest}"
    digits = f".{max(1, 1 - math.floor(math.log10(largest)))}f"
    digits = digits if columns * layers <= _NUMBERED else ""
    marks = layers_by(mean, column, scale, light=dark, digits=digits)
    many_prompts = len(data[["task", "length", "seed"]].drop_duplicates()) > 1
    words = "real effect, mean over the prompts" if many_prompts else "real effect"
    return draw.panel(marks, min(_SIDE, (92 if what == "layers" else 46) * columns), _SIDE, words)
