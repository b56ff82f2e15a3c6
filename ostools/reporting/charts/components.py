"""Inside the model: where an answer is lost, and what each part contributes to it."""

from __future__ import annotations

import altair as alt
import pandas as pd

from ostools.measure import Decodability, FailureStage
from ostools.measure.probes.failure_stage import NOT_READ, READ, UNDECODABLE
from ostools.measure.probes.scores import TESTS
from ostools.mitigations.named import NONE
from ostools.reporting.forms import SQUARE, bars
from ostools.reporting.style import axes, draw, theme
from ostools.results import Chart, Frame, frame_of

_WIDTH, _HEIGHT, _NARROW = 600, 150, 180
_LENGTH, _PLACES = "length n (items of the sequence)", "v^(l), z after attention, y"
_SHARES = {READ: "right", NOT_READ: "full", UNDECODABLE: "wrong"}
_CONTROLS = {"none": "measured", "random weights": "random weights", "shuffled": "shuffled labels"}
_HUES = {"measured": "full", "random weights": "frozen", "shuffled labels": "float64"}
_ALONE = "length alone"


def failure_stage_chart(result: FailureStage) -> Chart:
    """Lengths by verdict: the shares of prompts whose answer is read, decodable and unread, and not
    decodable, a panel a dtype and mitigation. What probes decode at each place is the chart of
    `result.probes`."""
    frame = frame_of(result)
    panels = []
    for (mitigation, dtype), group in frame.groupby(["mitigation", "dtype"], sort=False):
        condition = "" if mitigation == NONE else f", under {theme.inert(str(mitigation))}"
        panels.append([_failure_stage_bars(group, f"{dtype}{condition}")])
    title = f"Where answers are lost: {frame['task'].iloc[0]}"
    return draw.figure(panels, title, result.findings()[:1], between=14, color="independent")


def probe_chart(result: Decodability) -> Chart:
    """The share that linear probes say right, with its 95% interval, at every place in the order of
    the forward pass; beside it the controls, and dashed what the length alone says. A panel per
    dtype and test: tests are never in one line."""
    title = f"What linear probes decode: {frame_of(result)['task'].iloc[0]}"
    notes, looks = result.findings()[:1], {"spacing": 18, "between": 14, "color": "independent"}
    return draw.figure(_places(result), title, notes, **looks)


def _failure_stage_bars(group: Frame, name: str) -> alt.LayerChart:
    rows = group.assign(name=group["length"].astype(str)).melt(
        ["name", "verdict"], list(_SHARES), "series"
    )
    lengths = [str(length) for length in sorted(group["length"])]
    axis = axes.names(lengths, alt.X, _LENGTH, labelAngle=0, grid=False)
    hue, value = draw.hue("series", _SHARES, **SQUARE), axes.share("share of prompts")
    marks = bars(rows.dropna(subset=["value"]), axis, value, hue)
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


def _places(result: Decodability) -> list[list[draw.Panel]]:
    """A row a dtype, in it a panel a test; what the length alone says is of no dtype."""
    frame = frame_of(result)
    length = frame[frame["site"] == "length"]
    alone = dict(zip(length["test"], length["accuracy"], strict=True))
    depth = result.predictions[["site", "layer", "depth"]].drop_duplicates()
    frame = frame[frame["site"] != "length"].merge(depth, on=["site", "layer"])
    rows = []
    for dtype, group in frame.sort_values("depth", kind="stable").groupby("dtype", sort=False):
        panels = [
            _place_panel(of_test, f"{dtype}, {test}", alone.get(test))
            for test in TESTS
            if len(of_test := group[group["test"] == test])
        ]
        # One legend a row: the panels of a row share their colours.
        rows.append([alt.hconcat(*panels, spacing=18).resolve_scale(color="shared")])
    return rows


def _place_panel(group: Frame, name: str, alone: float | None) -> alt.LayerChart:
    rows = group[["low", "high"]].assign(
        name=places_named(group), series=group["control"].map(_CONTROLS), value=group["accuracy"]
    )
    hue = draw.hue("series", _HUES | ({} if alone is None else {_ALONE: theme.INK}), columns=4)
    axis = axes.names(list(dict.fromkeys(rows["name"])), alt.X, _PLACES, ticks=True)
    value = axes.share("right (held-out prompts)")
    offset = alt.XOffset("series:N", sort=list(_HUES))
    marks = bars(rows, axis, value, hue, intervals=[("low", "high", 1)], offset=offset, size=34)
    if alone is not None:
        level = draw.rows(pd.DataFrame({"value": [alone], "series": [_ALONE]}))
        rule = level.mark_rule(strokeDash=[4, 3]).encode(y=alt.Y("value:Q", **value), color=hue)
        marks.insert(0, rule)
    return draw.panel(marks, _NARROW, _HEIGHT, name)
