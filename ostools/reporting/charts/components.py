"""Inside the model: where an answer is lost, and what each part contributes to it."""

from __future__ import annotations

import math
import textwrap
from typing import Any

import altair as alt
import pandas as pd

from ostools.experiments.ablation.ablation import Ablation
from ostools.measure.probes.failure_stage import (
    NOT_READ,
    READ,
    SAME_VECTOR,
    UNDECIDED,
    UNDECODABLE,
    UNTESTED,
    FailureStage,
)
from ostools.measure.probes.intervention import ProbeIntervention
from ostools.measure.probes.probe import Decodability
from ostools.measure.probes.scores import TESTS
from ostools.mitigations.named import NONE
from ostools.reporting.findings.effects import QUANTITY_WORDS
from ostools.reporting.findings.probes import failure_stage_findings, intervention_findings, probe_findings
from ostools.reporting.forms import SQUARE, bars, layers_by, word_cells
from ostools.reporting.style import axes, draw, theme
from ostools.results import Frame, frame_of

_WIDTH, _HEIGHT, _NARROW = 600, 150, 180
_MOST_LINES, _LETTERS = 3, 135
"""Most lines below a title, and letters in one."""
_LENGTH, _PLACES = "length n (items of the sequence)", "v^(l), z after attention, y"
_SHARES = {READ: "right", NOT_READ: "full", UNDECODABLE: "wrong"}
_VERDICTS = _SHARES | {SAME_VECTOR: "float64", UNDECIDED: "none", UNTESTED: "none"}
_CONTROLS = {"none": "measured", "random weights": "random weights", "shuffled": "shuffled labels"}
_HUES = {"measured": "full", "random weights": "frozen", "shuffled labels": "float64"}
_ALONE = "length alone"


def failure_stage_chart(result: FailureStage) -> Any:
    """Lengths by verdict: under mitigations first a grid of verdicts, lengths by mitigations, a panel a dtype; then the shares
    of prompts whose answer is read, decodable and unread, and not decodable, without a mitigation (and under one, where it is
    the only one); below them layers by decodability. Of one mitigation the verdicts of all lengths are named in the notes."""
    frame = frame_of(result)
    arm_count = frame["mitigation"].nunique()
    panels: list[Any] = [
        _grid(group, f"{dtype}: the verdict (and the share answered right)")
        for dtype, group in frame.groupby("dtype", sort=False)
        if arm_count > 1
    ]
    panels += [
        _failure_stage_bars(group, f"{dtype}{'' if mitigation == NONE else f', under {theme.inert(mitigation)}'}")
        for (mitigation, dtype), group in frame.groupby(["mitigation", "dtype"], sort=False)
        if arm_count < 3 or mitigation == NONE
    ]
    rows = [[panel] for panel in panels] + ([] if result.probes.frame.empty else _places(result.probes))
    title = f"Where answers are lost: {frame['task'].iloc[0]}"
    notes = failure_stage_findings(result) if arm_count == 1 else probe_findings(result.probes)
    return draw.figure(rows, title, _notes(notes), spacing=18, between=14, color="independent")


def probe_chart(result: Decodability) -> Any:
    """The share that linear probes say right, with its 95% interval, at every place in the order of the forward pass; beside it
    the controls, and dashed what the length alone says. A panel per dtype and test: tests are never in one line."""
    title = f"What linear probes decode: {frame_of(result)['task'].iloc[0]}"
    notes = _notes(probe_findings(result))
    return draw.figure(_places(result), title, notes, spacing=18, between=14, color="independent")


def intervention_chart(result: ProbeIntervention) -> Any:
    """By how much the expected answer moves where the probe says the next, by place and direction; a panel a dtype."""
    frame = frame_of(result)
    panels = [[_moves(group, str(dtype))] for dtype, group in frame.groupby("dtype", sort=False)]
    title = f"Is it read? {frame['task'].iloc[0]}"
    return draw.figure(panels, title, _notes(intervention_findings(result)), between=14)


def _moves(frame: Frame, name: str) -> Any:
    rows: Frame = frame.assign(name=places_named(frame), value=frame["intervention"], series=frame["direction"])
    order = list(dict.fromkeys(rows["name"]))
    axis = axes.names(order, alt.X, _PLACES, labelAngle=-90 if len(order) > 18 else 0)
    value = axes.linear(f"answer moved (counts; predicted {frame['predicted'].iloc[0]:.3g})")
    hue = draw.hue("series", {"probe": "full", "data": "frozen"}, **SQUARE)
    rows = rows[["name", "value", "series", "cosine", "followed"]]
    return draw.panel(bars(rows, axis, value, hue, offset=alt.XOffset("series:N")), _WIDTH, _HEIGHT, name)


def _notes(sentences: list[str]) -> list[str]:
    """In at most three lines where sentences can be left out, the last first: the panels and the result's table have them."""
    wrapped = [textwrap.wrap(sentence, _LETTERS) for sentence in sentences]
    while sum(map(len, wrapped)) > _MOST_LINES and len(wrapped) > 1:
        wrapped.pop()
    return [line for lines in wrapped for line in lines]


def _grid(group: Frame, name: str) -> Any:
    """A cell a length and mitigation, in the colour of its verdict."""
    order = [str(length) for length in sorted(set(group["length"]))]
    rows: Frame = group.assign(
        n=group["length"].astype(str),
        name=[theme.inert(str(name)) for name in group["mitigation"]],
        said=[f"{share:.0%}" for share in group["answered"]],
    )
    rows = rows[["n", "name", "verdict", "said", "status"]]
    arms = list(dict.fromkeys(rows["name"]))
    hue = draw.hue(
        "verdict", {verdict: look for verdict, look in _VERDICTS.items() if verdict in set(rows["verdict"])}, **SQUARE
    )
    column = alt.X("n:N", sort=order, title=_LENGTH, axis=alt.Axis(labelAngle=0), scale=alt.Scale(paddingInner=0.01))
    row = alt.Y("name:N", sort=arms, title=None, axis=alt.Axis(labelLimit=220), scale=alt.Scale(paddingInner=0.06))
    return draw.panel(word_cells(rows, column, row, hue, "said"), _WIDTH, 26 * len(arms), name)


def _failure_stage_bars(group: Frame, name: str) -> Any:
    parts = [group[["length", "verdict"]].assign(value=group[share], series=share) for share in _SHARES]
    rows: Frame = pd.concat(parts).dropna(subset=["value"])
    rows = rows.assign(name=rows["length"].astype(str)).drop(columns="length")
    axis = axes.names([str(length) for length in sorted(group["length"])], alt.X, _LENGTH, labelAngle=0, grid=False)
    marks = bars(rows, axis, axes.share("share of prompts"), draw.hue("series", _SHARES, **SQUARE))
    return draw.panel(marks, _WIDTH, _HEIGHT, name)


def places_named(frame: Frame) -> list[str]:
    """v^(l) as v0, v1, ...; after the attention of a block z0, z1, ...; what else there is by its name."""
    short = {"residual": "v", "residual_mid": "z", "embedding": "v"}
    return [
        f"{short[site]}{layer}" if site in short else str(site)
        for site, layer in zip(frame["site"], frame["layer"], strict=True)
    ]


def _places(result: Decodability) -> list[list[Any]]:
    """A row a dtype, in it a panel a test; what the length alone says is of no dtype."""
    frame = frame_of(result)
    length = frame[frame["site"] == "length"]
    alone = dict(zip(length["test"], length["accuracy"], strict=True))
    frame = frame[frame["site"] != "length"]
    depth = result.predictions[["site", "layer", "depth"]].drop_duplicates()
    frame = frame.merge(depth, on=["site", "layer"]).sort_values("depth", kind="stable")
    rows = []
    for dtype in dict.fromkeys(frame_of(result)["dtype"]):
        group = frame[frame["dtype"] == dtype]
        tests = [test for test in TESTS if (group["test"] == test).any()]
        panels = [_place_panel(group[group["test"] == test], f"{dtype}, {test}", alone.get(test)) for test in tests]
        # One legend a row: the panels of a row share their colours.
        rows += [[alt.hconcat(*panels, spacing=18).resolve_scale(color="shared")]] if panels else []
    return rows


def _place_panel(group: Frame, name: str, alone: float | None) -> Any:
    rows = group.assign(name=places_named(group), series=group["control"].map(_CONTROLS), value=group["accuracy"])
    hue = draw.hue("series", _HUES | ({} if alone is None else {_ALONE: theme.INK}), columns=4)
    axis = axes.names(list(dict.fromkeys(rows["name"])), alt.X, _PLACES, ticks=True)
    value = axes.share("right (held-out prompts)")
    offset = alt.XOffset("series:N", sort=list(_HUES))
    rows = rows[["name", "series", "value", "low", "high"]]
    marks = bars(rows, axis, value, hue, intervals=[("low", "high", 1)], offset=offset, size=34)
    if alone is not None:
        level = pd.DataFrame({"value": [alone], "series": [_ALONE]})
        rule = draw.rows(level).mark_rule(strokeDash=[4, 3])
        marks.insert(0, rule.encode(y=alt.Y("value:Q", **value), color=hue, tooltip=draw.tooltips(level)))
    return draw.panel(marks, _NARROW, _HEIGHT, name)


_QUANTITIES = {
    "frobenius_norm": "||J|| (Frobenius) of the tokens that carry the answer",
    "pair_distance": "||y - y*|| of n and n + 1 items",
    "log_probability": "log p of the right answer, nats",
}
"""What is drawn; the operator norm stands in the table."""
_MOST_EDGES = 12
_NUMBERED = 64  # more cells than that get no number
_SIDE = 230


def ablation_chart(result: Ablation) -> Any:
    """A row a quantity: left predicted against real with the diagonal, right the real effects, mean over the prompts."""
    frame: Any = result.frame
    rows = [
        _quantity_row(frame[frame["quantity"] == quantity], words)
        for quantity, words in _QUANTITIES.items()
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
    wrong: Frame = table[table["believed"].isin([False]) & table["quantity"].isin(_QUANTITIES)]
    lines = []
    for quantity, rows in wrong.groupby("quantity", sort=False):
        more = f" ({len(rows)} of {(table['quantity'] == quantity).sum()} prompts)" if len(rows) > 1 else ""
        lines.append(f"First order of {QUANTITY_WORDS[str(quantity)]}: {rows['words'].iloc[0]}{more}")
    return lines


def _quantity_row(data: Frame, words: str) -> list[Any]:
    what = data["what"].iloc[0]
    return [_scatter(data, words), _edge_bars(data) if what == "edges" else _effect_map(data, what)]


def _scatter(data: Frame, words: str) -> Any:
    """One square scale for both, so that a prediction that is too small is seen to be."""
    effects = data[["predicted_effect", "effect"]].to_numpy()
    low, high = min(effects.min(), 0.0), max(effects.max(), 0.0)
    margin = 0.06 * (high - low) or 1.0
    ends = (float(low - margin), float(high + margin))
    x, y = (
        axes.linear(title, ends, tickCount=4, grid=True) for title in ("predicted effect (first order)", "real effect")
    )
    points = data[["target", "layer", "effect", "predicted_effect"]]
    hue = draw.layer_hue(int(points["layer"].max()), symbolType="circle", symbolSize=60)
    marks = draw.rows(points).mark_circle(size=46)
    marks = marks.encode(
        x=alt.X("predicted_effect:Q", **x),
        y=alt.Y("effect:Q", **y),
        color=hue,
        tooltip=draw.tooltips(points),
    )
    diagonal = draw.rows(pd.DataFrame({"predicted_effect": ends, "effect": ends}))
    diagonal = diagonal.mark_line(strokeDash=[4, 3], strokeWidth=1, color=theme.colour("float64"))
    diagonal = diagonal.encode(x=alt.X("predicted_effect:Q", **x), y=alt.Y("effect:Q", **y))
    return draw.panel([diagonal, marks], _SIDE, _SIDE, words)


def _effect_map(data: Frame, what: str) -> Any:
    """The real effects, red where taking the part out makes the number smaller."""
    column = "head" if what == "heads" else "part"
    mean = data.groupby(["layer", column], as_index=False)["effect"].mean().rename(columns={"effect": "value"})
    largest = float(mean["value"].abs().max()) or 1.0
    scale = alt.Scale(scheme="redblue", domain=[-largest, largest])
    columns, layers = mean[column].nunique(), int(mean["layer"].max()) + 1
    # Where white reads better than black on this scheme.
    dark = f"datum.value < {-0.735 * largest} || datum.value > {0.79 * largest}"
    digits = f".{max(1, 1 - math.floor(math.log10(largest)))}f" if columns * layers <= _NUMBERED else ""
    marks = layers_by(mean, column, scale, light=dark, digits=digits)
    return draw.panel(marks, min(_SIDE, (92 if what == "layers" else 46) * columns), _SIDE, _real(data))


def _real(data: Frame) -> str:
    many_prompts = len(data[["task", "length", "seed"]].drop_duplicates()) > 1
    return "real effect, mean over the prompts" if many_prompts else "real effect"


def _edge_bars(data: Frame) -> Any:
    """Edges have no grid: those with the greatest effects, a bar each, the prediction as a stroke across it."""
    mean = data.groupby("target", as_index=False)[["effect", "predicted_effect"]].mean()
    order = mean["effect"].abs().sort_values(ascending=False).index[:_MOST_EDGES]
    rows = mean.loc[order].rename(columns={"target": "name", "effect": "value"})
    names = axes.names(rows["name"].tolist(), title="layer.head: query → key")
    value = axes.linear("real effect (bar), predicted (stroke)", tickCount=3)
    marks = bars(rows, names, value, alt.value(theme.colour("full")), height=9)
    strokes = draw.rows(rows).mark_tick(color=theme.colour("first-order"), thickness=2.5, size=15)
    marks.append(strokes.encode(x="predicted_effect:Q", y=names))
    return draw.panel(marks, _SIDE, _SIDE, f"{_real(data)}, the {len(rows)} greatest")
