"""Inside the model: where an answer is lost, and what each part contributes to it."""

from __future__ import annotations

import textwrap
from typing import Any

import altair as alt
import pandas as pd

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
from ostools.reporting.forms import SQUARE, bars, word_cells
from ostools.reporting.style import axes, draw, theme
from ostools.results import Chart, Frame, frame_of

_WIDTH, _HEIGHT, _NARROW = 600, 150, 180
_MOST_LINES, _LETTERS = 3, 135
"""Most lines below a title, and letters in one."""
_LENGTH, _PLACES = "length n (items of the sequence)", "v^(l), z after attention, y"
_SHARES = {READ: "right", NOT_READ: "full", UNDECODABLE: "wrong"}
_VERDICTS = _SHARES | {SAME_VECTOR: "float64", UNDECIDED: "none", UNTESTED: "none"}
_CONTROLS = {"none": "measured", "random weights": "random weights", "shuffled": "shuffled labels"}
_HUES = {"measured": "full", "random weights": "frozen", "shuffled labels": "float64"}
_ALONE = "length alone"


def failure_stage_chart(result: FailureStage) -> Chart:
    """Lengths by verdict: under mitigations first a grid of verdicts, lengths by mitigations, a
    panel a dtype; then the shares of prompts whose answer is read, decodable and unread, and not
    decodable, without a mitigation (and under one, where it is the only one); below them layers by
    decodability. Of one mitigation the verdicts of all lengths are named in the notes."""
    frame = frame_of(result)
    arm_count = frame["mitigation"].nunique()
    panels: list[Any] = [
        _grid(group, f"{dtype}: the verdict (and the share answered right)")
        for dtype, group in frame.groupby("dtype", sort=False)
        if arm_count > 1
    ]
    panels += [
        _failure_stage_bars(
            group, f"{dtype}{'' if mitigation == NONE else f', under {theme.inert(mitigation)}'}"
        )
        for (mitigation, dtype), group in frame.groupby(["mitigation", "dtype"], sort=False)
        if arm_count < 3 or mitigation == NONE
    ]
    rows = [[panel] for panel in panels] + (
        [] if result.probes.frame.empty else _places(result.probes)
    )
    title = f"Where answers are lost: {frame['task'].iloc[0]}"
    notes = result.findings() if arm_count == 1 else result.probes.findings()
    return draw.figure(rows, title, _notes(notes), spacing=18, between=14, color="independent")


def probe_chart(result: Decodability) -> Chart:
    """The share that linear probes say right, with its 95% interval, at every place in the order of
    the forward pass; beside it the controls, and dashed what the length alone says. A panel per
    dtype and test: tests are never in one line."""
    title = f"What linear probes decode: {frame_of(result)['task'].iloc[0]}"
    notes = _notes(result.findings())
    return draw.figure(_places(result), title, notes, spacing=18, between=14, color="independent")


def intervention_chart(result: ProbeIntervention) -> Chart:
    """By how much the expected answer moves where the probe says the next, by place and direction;
    a panel a dtype.
    """
    frame = frame_of(result)
    panels = [[_moves(group, str(dtype))] for dtype, group in frame.groupby("dtype", sort=False)]
    title = f"Is it read? {frame['task'].iloc[0]}"
    return draw.figure(panels, title, _notes(result.findings()), between=14)


def _moves(frame: Frame, name: str) -> Any:
    rows: Frame = frame.assign(
        name=places_named(frame), value=frame["intervention"], series=frame["direction"]
    )
    order = list(dict.fromkeys(rows["name"]))
    axis = axes.names(order, alt.X, _PLACES, labelAngle=-90 if len(order) > 18 else 0)
    value = axes.linear(f"answer moved (counts; predicted {frame['predicted'].iloc[0]:.3g})")
    hue = draw.hue("series", {"probe": "full", "data": "frozen"}, **SQUARE)
    rows = rows[["name", "value", "series", "cosine", "followed"]]
    return draw.panel(
        bars(rows, axis, value, hue, offset=alt.XOffset("series:N")), _WIDTH, _HEIGHT, name
    )


def _notes(sentences: list[str]) -> list[str]:
    """In at most three lines where sentences can be left out, the last first: the panels and the
    result's table have them.
    """
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
        "verdict",
        {verdict: look for verdict, look in _VERDICTS.items() if verdict in set(rows["verdict"])},
        **SQUARE,
    )
    column = alt.X(
        "n:N",
        sort=order,
        title=_LENGTH,
        axis=alt.Axis(labelAngle=0),
        scale=alt.Scale(paddingInner=0.01),
    )
    row = alt.Y(
        "name:N",
        sort=arms,
        title=None,
        axis=alt.Axis(labelLimit=220),
        scale=alt.Scale(paddingInner=0.06),
    )
    return draw.panel(word_cells(rows, column, row, hue, "said"), _WIDTH, 26 * len(arms), name)


def _failure_stage_bars(group: Frame, name: str) -> Any:
    parts = [
        group[["length", "verdict"]].assign(value=group[share], series=share) for share in _SHARES
    ]
    rows: Frame = pd.concat(parts).dropna(subset=["value"])
    rows = rows.assign(name=rows["length"].astype(str)).drop(columns="length")
    axis = axes.names(
        [str(length) for length in sorted(group["length"])],
        alt.X,
        _LENGTH,
        labelAngle=0,
        grid=False,
    )
    marks = bars(rows, axis, axes.share("share of prompts"), draw.hue("series", _SHARES, **SQUARE))
    return draw.panel(marks, _WIDTH, _HEIGHT, name)


def places_named(frame: Frame) -> list[str]:
    """v^(l) as v0, v1, ...; after the attention of a block z0, z1, ...; what else there is by its
    name.
    """
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
        panels = [
            _place_panel(group[group["test"] == test], f"{dtype}, {test}", alone.get(test))
            for test in tests
        ]
        # One legend a row: the panels of a row share their colours.
        rows += [[alt.hconcat(*panels, spacing=18).resolve_scale(color="shared")]] if panels else []
    return rows


def _place_panel(group: Frame, name: str, alone: float | None) -> Any:
    rows = group.assign(
        name=places_named(group), series=group["control"].map(_CONTROLS), value=group["accuracy"]
    )
    hue = draw.hue("series", _HUES | ({} if alone is None else {_ALONE: theme.INK}), columns=4)
    axis = axes.names(list(dict.fromkeys(rows["name"])), alt.X, _PLACES, ticks=True)
    value = axes.share("right (held-out prompts)")
    offset = alt.XOffset("series:N", sort=list(_HUES))
    rows = rows[["name", "series", "value", "low", "high"]]
    marks = bars(rows, axis, value, hue, intervals=[("low", "high", 1)], offset=offset, size=34)
    if alone is not None:
        level = pd.DataFrame({"value": [alone], "series": [_ALONE]})
        rule = draw.rows(level).mark_rule(strokeDash=[4, 3])
        marks.insert(
            0, rule.encode(y=alt.Y("value:Q", **value), color=hue, tooltip=draw.tooltips(level))
        )
    return draw.panel(marks, _NARROW, _HEIGHT, name)
