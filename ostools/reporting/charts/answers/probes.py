"""Where an answer is lost: shares of prompts by length, and how often probes are right by place."""

from __future__ import annotations

import textwrap
from typing import Any

import altair as alt
import pandas as pd

from mitigations.named import NONE
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
from ostools.measure.probes.splits import TESTS
from ostools.reporting.findings.probes import failure_stage_in_short, intervention_in_short, probe_in_short
from ostools.reporting.forms.bars import SQUARE, bars, names
from ostools.reporting.forms.curve import shares
from ostools.reporting.forms.table import worded
from ostools.reporting.look import draw, theme
from ostools.results import Frame, frame_of

WIDTH, HEIGHT, NARROW = 600, 150, 180
_LINES, _LETTERS = 3, 135
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
    several = frame["mitigation"].nunique()
    panels: list[Any] = [
        _grid(here, f"{dtype}: the verdict (and the share answered right)")
        for dtype, here in frame.groupby("dtype", sort=False)
        if several > 1
    ]
    panels += [
        _bars(here, f"{dtype}{'' if mitigation == NONE else f', under {theme.inert(mitigation)}'}")
        for (mitigation, dtype), here in frame.groupby(["mitigation", "dtype"], sort=False)
        if several < 3 or mitigation == NONE
    ]
    rows = [[panel] for panel in panels] + ([] if result.probes.frame.empty else _places(result.probes))
    title = f"Where answers are lost: {frame['task'].iloc[0]}"
    return draw.figure(rows, title, _notes(failure_stage_in_short(result)), spacing=18, between=14, color="independent")


def probe_chart(result: Decodability) -> Any:
    """The share that linear probes say right, with its 95% interval, at every place in the order of the forward pass; beside it
    the controls, and dashed what the length alone says. A panel per dtype and test: tests are never in one line."""
    title = f"What linear probes decode: {frame_of(result)['task'].iloc[0]}"
    notes = _notes(probe_in_short(result))
    return draw.figure(_places(result), title, notes, spacing=18, between=14, color="independent")


def intervention_chart(result: ProbeIntervention) -> Any:
    """By how much the expected answer moves where the probe says the next, by place and direction; a panel a dtype."""
    frame = frame_of(result)
    panels = [[_moves(here, str(dtype))] for dtype, here in frame.groupby("dtype", sort=False)]
    title = f"Is it read? {frame['task'].iloc[0]}"
    return draw.figure(panels, title, _notes(intervention_in_short(result)), between=14)


def _moves(frame: Frame, name: str) -> Any:
    rows: Frame = frame.assign(name=places_named(frame), value=frame["intervention"], series=frame["direction"])
    order = list(dict.fromkeys(rows["name"]))
    axis = names(order, alt.X, _PLACES, labelAngle=-90 if len(order) > 18 else 0)
    value = {"title": f"answer moved (counts; predicted {frame['predicted'].iloc[0]:.3g})"}
    hue = draw.hue("series", {"probe": theme.colour("full"), "data": theme.colour("frozen")}, **SQUARE)
    rows = rows[["name", "value", "series", "cosine", "followed"]]
    told = ["name:N", "series:N", "cosine:Q", "followed:Q"]
    marks = bars(rows, axis, value, hue, offset=alt.XOffset("series:N"), tooltip=told)
    return draw.layers(*marks, width=WIDTH, height=HEIGHT, title=draw.heading(name))


def _notes(sentences: list[str]) -> list[str]:
    """In at most three lines where sentences can be left out, the last first: the panels and the result's table have them."""
    wrapped = [textwrap.wrap(sentence, _LETTERS) for sentence in sentences]
    while sum(map(len, wrapped)) > _LINES and len(wrapped) > 1:
        wrapped.pop()
    return [line for lines in wrapped for line in lines]


def _grid(here: Frame, name: str) -> Any:
    """A cell a length and mitigation, in the colour of its verdict."""
    order = [str(length) for length in sorted(set(here["length"]))]
    rows: Frame = here.assign(
        n=here["length"].astype(str),
        name=[theme.inert(str(name)) for name in here["mitigation"]],
        said=[f"{share:.0%}" for share in here["answered"]],
    )
    rows = rows[["n", "name", "verdict", "said", "status"]]
    arms = list(dict.fromkeys(rows["name"]))
    known = {one: theme.colour(look) for one, look in _VERDICTS.items() if (rows["verdict"] == one).any()}
    column = alt.X("n:N", sort=order, title=_LENGTH, axis=alt.Axis(labelAngle=0), scale=alt.Scale(paddingInner=0.01))
    row = alt.Y("name:N", sort=arms, title=None, axis=alt.Axis(labelLimit=220), scale=alt.Scale(paddingInner=0.06))
    told, hue = ["n:N", "name:N", "verdict:N", "said:N", "status:N"], draw.hue("verdict", known, **SQUARE)
    marks = worded(rows, column, row, hue, "said", told)
    return draw.layers(*marks, width=WIDTH, height=26 * len(arms), title=draw.heading(name))


def _bars(here: Frame, name: str) -> Any:
    parts = [here[["length", "verdict"]].assign(value=here[share], series=share) for share in _SHARES]
    rows: Frame = pd.concat(parts).dropna(subset=["value"])
    rows = rows.assign(name=rows["length"].astype(str)).drop(columns="length")
    axis = names([str(length) for length in sorted(here["length"])], alt.X, _LENGTH, labelAngle=0, grid=False)
    hue = draw.hue("series", {share: theme.colour(look) for share, look in _SHARES.items()}, **SQUARE)
    marks = bars(rows, axis, shares("share of prompts"), hue, tooltip=["name:N", "series:N", "verdict:N"])
    return draw.layers(*marks, width=WIDTH, height=HEIGHT, title=draw.heading(name))


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
        here = frame[frame["dtype"] == dtype]
        tests = [test for test in TESTS if (here["test"] == test).any()]
        panels = [_place_panel(here[here["test"] == test], f"{dtype}, {test}", alone.get(test)) for test in tests]
        # One legend a row: the panels of a row share their colours.
        rows += [[alt.hconcat(*panels, spacing=18).resolve_scale(color="shared")]] if panels else []
    return rows


def _place_panel(here: Frame, name: str, alone: float | None) -> Any:
    rows = here.assign(name=places_named(here), series=here["control"].map(_CONTROLS), value=here["accuracy"])
    colours = {name: theme.colour(look) for name, look in _HUES.items()}
    hue = draw.hue("series", colours | ({} if alone is None else {_ALONE: theme.INK}), columns=4)
    axis, value = (
        names(list(dict.fromkeys(rows["name"])), alt.X, _PLACES, ticks=True),
        shares("right (held-out prompts)"),
    )
    offset = alt.XOffset("series:N", sort=list(_HUES))
    rows = rows[["name", "series", "value", "low", "high"]]
    intervals, told = [("low", "high", 1)], ["name:N", "series:N"]
    marks = bars(rows, axis, value, hue, intervals=intervals, offset=offset, size=34, tooltip=told)
    if alone is not None:
        level = draw.rows(pd.DataFrame({"value": [alone], "series": [_ALONE]})).mark_rule(strokeDash=[4, 3])
        marks.insert(0, level.encode(y=alt.Y("value:Q", **value), color=hue, tooltip=["series:N", draw.VALUE]))
    return draw.layers(*marks, width=NARROW, height=HEIGHT, title=draw.heading(name))
