"""What each part of a model, or each edge, contributes (first-order effects against real ones of
taking it out; the share of the clean-corrupt gap that it carries), and what mitigations change.
"""

import math

import altair as alt
import numpy as np
import pandas as pd

from ostools.ground import title_of
from ostools.measure import Ablation, Patching, Study
from ostools.measure.patching.patching import DENOISING, KNOCKOUT, NOISING
from ostools.measure.patching.runs import HEADS, RESIDUAL
from ostools.measure.study.verdicts import (
    HELPS,
    HURTS,
    LARGER,
    NO_EFFECT,
    SMALLER,
    UNDECIDED,
    bound,
)
from ostools.reporting.findings.effects import gap_words, patched_logit
from ostools.reporting.forms import (
    TOKENS_WIDTH,
    bars,
    gradient,
    heat,
    layers_by,
    layers_up,
    looks_by_name,
)
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
    what, rows = frame["what"].iloc[0], []
    for quantity, words in _QUANTITIES.items():
        data = frame[frame["quantity"] == quantity]
        if len(data):
            grid = [_effect_map(data, what)] if what != "edges" else []
            rows.append([_scatter(data, words), *grid])
    notes = [
        result.findings()[0],
        "Effect: the value with the part out, minus the value with nothing out. On the diagonal "
        "the first-order prediction is right.",
    ]
    title = f"Taking {what} out, one at a time: {frame['task'].iloc[0]}"
    return draw.figure(rows, title, notes, spacing=34, between=26, color="independent")


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
    diagonal = line.mark_line(strokeDash=[4, 3], strokeWidth=1, color=_GREY).encode(**places)
    return draw.panel([diagonal, marks], _SIDE, _SIDE, words)


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
    width = min(_SIDE, (92 if what == "layers" else 46) * columns)
    return draw.panel(marks, width, _SIDE, "real effect, mean over the prompts")


# --- patching

_DIRECTIONS = {
    DENOISING: "denoising: clean into corrupt",
    NOISING: "noising: corrupt into clean",
    KNOCKOUT: "knockout: this position is not seen",
}
_LEFT_OUT = "Left out: the tokens before the first with an effect."
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

    Of the logit, or of the logit difference. Where the two runs do not have the two answers, not
    the share of the gap but the effect itself: red is more of the difference. Positions whose parts
    have no effect anywhere before the first that has some are left out.
    """
    table = result.of_logits
    axes.require_finite(table["share"], "patching")
    cells = _cells(table, "share" if result.has_both_answers else "effect")
    left_out = [_LEFT_OUT] if len(cells) < len(table) else []
    largest = float(cells["value"].abs().max()) or 1.0
    legend = gradient("effect on the logit difference")
    if result.has_both_answers:
        largest, legend = max(1.0, largest), gradient("share of the clean-corrupt gap")
    scale = alt.Scale(scheme="redblue", reverse=True, domain=[-largest, largest])
    colour = alt.Color("value:Q", scale=scale, legend=legend)
    words: Looks = {"labelAngle": -90, "labelFontSize": 10, "labelOverlap": False}
    names, directions = list(dict.fromkeys(cells["name"])), cells["direction"].unique().tolist()
    x = axes.names(names, alt.X, "head, or token and its position", **words)
    width = min(TOKENS_WIDTH, max(240, 22 * len(names)))
    height = max(90, min(11 * cells["layer"].nunique(), 340))
    panels = []
    for direction in directions:
        across = x if direction == directions[-1] else axes.quiet(x)
        marks = heat(cells[cells["direction"] == direction], across, layers_up(), colour)
        panels.append([draw.panel(marks, width, height, _DIRECTIONS[direction])])
    part = _PARTS[result.provenance.parameters["what"]]
    title = f"Where {part} carries the logit {patched_logit(table)}"
    return draw.figure(panels, title, [gap_words(result), *left_out], between=18, color="shared")


def _cells(table: Frame, column: str) -> Frame:
    """That column by part in the order of the prompt, or of the heads, without positions before the
    first that has some.
    """
    table = table.sort_values(["position", "positions", "head"], kind="stable")
    first_position = table.loc[table["effect"] != 0, "position"].min()
    rows = table if pd.isna(first_position) else table[table["position"] >= first_position]
    places = rows["token"].map(lambda token: theme.short_word(str(token)))
    places = places.str.cat(rows["positions"].astype(str), sep=" ")
    names = places.where(rows["head"].isna(), rows["head"].astype(str))
    columns = ["direction", "layer", "name", "token", "value", "effect"]
    return rows.assign(value=rows[column], name=names)[columns]


_FOREST_WIDTH, _FOREST_ROW = 250, 24
_FOREST_COLUMNS = 3
_TITLES = {
    "correct": "right answers (percentage points)",
    "log_probability": "log p of the right line (nats)",
    "collapse_distance": "distance of n and n + 1 at y, {dtype}",
    "sensitivity": "sensitivity of the answer's tokens",
}
NOT_JUDGED = "no verdict"
_LOOKS = {
    HELPS: (HELPS, "triangle-right"),
    HURTS: (HURTS, "triangle-left"),
    LARGER: (LARGER, "triangle-up"),
    SMALLER: (SMALLER, "triangle-down"),
    NO_EFFECT: (NO_EFFECT, "circle"),
    UNDECIDED: ("none", "square"),
    NOT_JUDGED: (NOT_JUDGED, "diamond"),
}
_ENDS = ("value", "low", "high", "verdict_low", "verdict_high")
_GREY = theme.colour("float64")


def study_chart(result: Study) -> Chart:
    """Thick: the interval at the study's level; thin: the wider one that its verdict is read from;
    0, or x1, is no effect.

    Ratios stand on a log axis; one to what is below its own rounding is a bound, with that word and
    no interval. A mitigation that changed nothing, or a quantity that could not be measured, has no
    mark, and a word in its place.
    """
    rows = _rows(result)
    order = list(dict.fromkeys(rows["name"]))
    panels = [
        _panel(rows[rows["panel"] == panel], order, labelled=index % _FOREST_COLUMNS == 0)
        for index, panel in enumerate(dict.fromkeys(rows["panel"]))
    ]
    return draw.figure(
        draw.in_rows(panels, _FOREST_COLUMNS),
        f"Mitigations against none, {result.provenance.parameters['task']}",
        _subtitle(result),
        spacing=18,
        between=22,
        color="shared",
        shape="shared",
    )


def _subtitle(result: Study) -> list[str]:
    parameters = result.provenance.parameters
    lengths, level = parameters["lengths"], parameters["level"]
    intervals = {
        "low": f"Thick: {level:.0%} interval over lengths",
        "verdict_low": f"thin: {parameters['verdict_level']:.2%}, so that all verdicts hold "
        f"together at {level:.0%}",
    }
    effects: Frame = result.effects
    ends = [words for name, words in intervals.items() if effects[name].notna().any()]
    return [
        f"{title_of(result.provenance.model)}; {len(lengths)} lengths from {lengths[0]} to "
        f"{lengths[-1]}, seeds: {len(parameters['seeds'])}; right of the line: more of it than "
        "without the mitigation.",
        f"{'; '.join(ends)}." if ends else "Too few lengths for an interval.",
    ]


def _rows(result: Study) -> Frame:
    """One row a mark: effects as they are drawn (points, or factors), their intervals, and what the
    verdict says of them.
    """
    effects: Frame = result.effects.sort_values(
        "quantity", key=lambda names: names.map([*_TITLES].index), kind="stable"
    )
    verdicts: Frame = result.verdicts.set_index("mitigation")
    limits = [bound(row).rstrip(",") for row in effects.to_dict("records")]
    is_ratio, points = effects["scale"] == "log10 ratio", effects["quantity"] == "correct"
    ends = effects[["effect", *_ENDS[1:]]].astype(float)
    ends = ends.where(~points, 100 * ends).where(~is_ratio, 10.0**ends)
    ends.loc[[limit != "" for limit in limits], list(_ENDS[1:])] = np.nan  # a bound has no interval
    judged = [
        verdicts.loc[mitigation, about] if about else NOT_JUDGED
        for mitigation, about in zip(effects["mitigation"], effects["about"], strict=True)
    ]
    missing = np.where(effects["inactive"] > 0, "inactive", "not measured")
    pairs = zip(effects["quantity"], effects["dtype"], strict=True)
    return effects[["scale", "pairs", "lengths"]].assign(
        **ends.rename(columns={"effect": "value"}),
        panel=[_TITLES[quantity].format(dtype=dtype) for quantity, dtype in pairs],
        verdict=[verdict if verdict in _LOOKS else NOT_JUDGED for verdict in judged],
        limit=limits,
        word=np.where(effects["pairs"] > 0, "", missing),
        name=effects["mitigation"].map(theme.inert),
        reason=effects["reason"].map(theme.inert),
    )


def _panel(rows: Frame, order: list[str], labelled: bool) -> alt.LayerChart:
    ratio = bool((rows["scale"] == "log10 ratio").all())
    none = 1.0 if ratio else 0.0
    measured, missing = rows[rows["pairs"] > 0].drop(columns="scale"), rows[rows["pairs"] == 0]
    hue, shape = looks_by_name("verdict", _LOOKS, columns=4, symbolSize=90).values()
    axis = axes.names(order, labels=labelled, domain=False, labelLimit=260, labelPadding=8)
    value = _value_axis(measured, ratio, none)
    intervals = [("verdict_low", "verdict_high", 1.2), ("low", "high", 3.6)]
    marks = draw.line_at("x", "none", none, colour=_GREY, dash=[3, 3])
    marks += bars(measured, axis, value, hue, intervals=intervals, shape=shape, size=90)
    italic: Looks = {"fontSize": 10, "fontStyle": "italic", "color": _GREY}
    if len(bounds := measured[measured["limit"] != ""]):
        words = draw.rows(bounds[["name", "value", "limit"]]).mark_text(dy=-10, **italic)
        marks.append(words.encode(x=alt.X("value:Q", **value), y=axis, text="limit:N"))
    if len(missing):
        words = draw.rows(missing[["name", "word"]]).mark_text(align="left", **italic)
        marks.append(words.encode(x=alt.value(6), y=axis, text="word:N"))
    return draw.panel(marks, _FOREST_WIDTH, _FOREST_ROW * len(order), str(rows["panel"].iloc[0]))


def _value_axis(measured: Frame, ratio: bool, none: float) -> Looks:
    """Around every effect and interval of the panel, with no effect in sight; ratios on a log axis
    of factors.
    """
    ends = measured[list(_ENDS)].to_numpy(dtype=float).ravel()
    values = np.append(ends[np.isfinite(ends)], none)
    low, high = float(values.min()), float(values.max())
    if ratio:
        return axes.log_channel(pd.Series([low / 1.15, high * 1.15]), "factor")
    room = 0.06 * (high - low) or 1.0
    return axes.linear(None, (low - room, high + room), grid=True, tickCount=4)
