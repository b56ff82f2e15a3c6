"""What each part of a model, or each edge, contributes: first-order effects against real ones of
taking it out, and the share of the clean-corrupt gap that it carries.
"""

from __future__ import annotations

import math

import altair as alt
import pandas as pd

from ostools.measure import Ablation, Patching
from ostools.measure.patching.patching import DENOISING, KNOCKOUT, LOG_P, NOISING
from ostools.measure.patching.runs import HEADS, RESIDUAL
from ostools.reporting.findings.effects import QUANTITY_WORDS, gap_words, patched_logit
from ostools.reporting.forms import TOKENS_WIDTH, gradient, heat, layers_by, layers_up
from ostools.reporting.style import axes, draw, theme
from ostools.results import Chart, Frame, Looks

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


# --- patching

_DIRECTIONS = {
    DENOISING: "denoising: clean into corrupt",
    NOISING: "noising: corrupt into clean",
    KNOCKOUT: "knockout: this position is not seen",
}
_LEFT_OUT = (
    "Left out: the tokens before the first that differs; nothing patched there changes anything."
)
_PARTS = {
    RESIDUAL: "the residual stream",
    "attention-out": "attention's output",
    "mlp-out": "the MLP's output",
    HEADS: "a head's output",
    "edges": "attention edges",
}


def patching_chart(result: Patching) -> Chart:
    """A panel a direction: layers up, tokens (heads) across, red where a part carries the answer,
    blue against it.

    Of the logit, or of the logit difference. Positions whose parts have no effect anywhere before
    the first that has some are left out: there both prompts are the same.
    """
    cells, left_out = _cells(result)
    by_head, directions = bool(cells["head"].notna().any()), list(dict.fromkeys(cells["direction"]))
    largest = max(1.0, float(cells["value"].abs().max()))
    scale = alt.Scale(scheme="redblue", reverse=True, domain=[-largest, largest])
    colour = alt.Color("value:Q", scale=scale, legend=gradient("share of the clean-corrupt gap"))
    title = "head" if by_head else "token and its position"
    words: Looks = {"labelAngle": -90, "labelFontSize": 10, "labelOverlap": False}
    x = axes.names(list(dict.fromkeys(cells["name"])), alt.X, title, **words)
    width = min(TOKENS_WIDTH, max(240, 22 * cells["name"].nunique()))
    height = max(90, min(11 * cells["layer"].nunique(), 340))
    side_by_side = 2 * width < TOKENS_WIDTH
    panels = []
    for direction in directions:
        across = x if side_by_side or direction == directions[-1] else axes.quiet(x)
        of_direction = cells[cells["direction"] == direction].drop(columns="head")
        marks = heat(of_direction, across, layers_up(), colour)
        panels.append(draw.panel(marks, width, height, _DIRECTIONS[direction]))
    part = _PARTS[result.provenance.parameters["what"]]
    title = f"Where {part} carries the logit {patched_logit(result.frame)}"
    table: Frame = result.frame[result.frame["quantity"] != "log_probability"]
    notes = [gap_words(table)[0], *([_LEFT_OUT] if left_out else [])]
    grid = [panels] if side_by_side else [[panel] for panel in panels]
    return draw.figure(grid, title, notes, spacing=26, between=18, color="shared")


def _cells(result: Patching) -> tuple[Frame, bool]:
    """The effects on the logit, or its difference, by part; and whether positions before the first
    that has some are left out.
    """
    table: Frame = result.frame
    table = table[table["quantity"] != LOG_P]
    axes.require_finite(table["share"], "patching")
    heads = table["head"].notna().any()
    moved_places = table.loc[table["effect"] != 0, "position"]
    rows = table if heads or moved_places.empty else table[table["position"] >= moved_places.min()]
    tokens = [theme.short_word(str(token)) for token in rows["token"]]
    places = [f"{token} {place}" for token, place in zip(tokens, rows["positions"], strict=True)]
    rows = rows.assign(value=rows["share"], name=rows["head"].astype(str) if heads else places)
    columns = ["direction", "layer", "head", "name", "token", "value", "effect"]
    return rows[columns], len(rows) < len(table)
