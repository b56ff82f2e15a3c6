"""Where an answer is lost: shares of prompts by length, and how often probes are right by place."""

from __future__ import annotations

import textwrap
from typing import Any

import altair as alt
import pandas as pd

from mitigations.named import NONE
from ostools.measure import Decodable, Fate, Readout
from ostools.measure.fate.fate import NOT_READ, READ, SAME_VECTOR, UNDECIDED, UNDECODABLE, UNTESTED
from ostools.measure.fate.splits import TESTS
from ostools.reporting.findings.fate import decodable_in_short, fate_in_short, readout_in_short
from ostools.reporting.look import axes, draw, theme
from ostools.results import Frame, frame_of

WIDTH, HEIGHT, NARROW = 600, 150, 180
_LINES, _LETTERS = 3, 135
"""Most lines below a title, and letters in one."""
_SQUARE: dict[str, Any] = {"symbolType": "square", "symbolSize": 70, "symbolStrokeWidth": 6, "columns": 3}
_SHARES = {READ: "right", NOT_READ: "full", UNDECODABLE: "wrong"}
_VERDICTS = _SHARES | {SAME_VECTOR: "float64", UNDECIDED: "none", UNTESTED: "none"}
_CONTROLS = {"none": "measured", "random weights": "random weights", "shuffled": "shuffled labels"}
_HUES = {"measured": "full", "random weights": "frozen", "shuffled labels": "float64"}
_ALONE = "length alone"


def fate_chart(result: Fate) -> alt.VConcatChart:
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
    panels += [] if result.probes.frame.empty else _places(result.probes)
    title = alt.TitleParams(f"Where answers are lost: {frame['task'].iloc[0]}", subtitle=_notes(fate_in_short(result)))
    return axes.themed(alt.vconcat(*panels, spacing=14, title=title).resolve_scale(color="independent"))


def decodable_chart(result: Decodable) -> alt.VConcatChart:
    """The share that linear probes say right, with its 95% interval, at every place in the order of the forward pass; beside it
    the controls, and dashed what the length alone says. A panel per dtype and test: tests are never in one line."""
    title = alt.TitleParams(
        f"What linear probes decode: {frame_of(result)['task'].iloc[0]}", subtitle=_notes(decodable_in_short(result))
    )
    panels = _places(result)
    return axes.themed(alt.vconcat(*panels, spacing=14, title=title).resolve_scale(color="independent"))


def readout_chart(result: Readout) -> alt.VConcatChart:
    """By how much the expected answer moves where the probe says the next, by place and direction; a panel a dtype."""
    frame = frame_of(result)
    panels: list[Any] = [_moves(here, str(dtype)) for dtype, here in frame.groupby("dtype", sort=False)]
    title = alt.TitleParams(f"Is it read? {frame['task'].iloc[0]}", subtitle=_notes(readout_in_short(result)))
    return axes.themed(alt.vconcat(*panels, spacing=14, title=title))


def _moves(frame: Frame, name: str) -> Any:
    rows: Frame = frame.assign(place=places_named(frame), value=frame["intervention"], quantity=frame["direction"])
    order = list(dict.fromkeys(rows["place"]))
    by, upright = f"{frame['predicted'].iloc[0]:.3g}", -90 if len(order) > 18 else 0
    colours = {"probe": theme.colour("full"), "data": theme.colour("frozen")}
    bars = draw.rows(draw.known(rows[["place", "value", "quantity", "cosine", "followed"]])).mark_bar()
    shown = bars.encode(
        x=alt.X("place:N", sort=order, title="v^(l), z after attention, y", axis=alt.Axis(labelAngle=upright)),
        xOffset="quantity:N",
        y=alt.Y("value:Q", title=f"answer moved (counts; predicted {by})"),
        color=draw.hue("quantity", colours, **_SQUARE),
        tooltip=["place:N", "quantity:N", draw.VALUE, "cosine:Q", "followed:Q"],
    )
    return draw.layers(shown, width=WIDTH, height=HEIGHT, title=draw.heading(name))


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
        under=[theme.inert(str(name)) for name in here["mitigation"]],
        said=[f"{share:.0%}" for share in here["answered"]],
    )
    rows = rows[["n", "under", "verdict", "said", "status"]]
    arms = list(dict.fromkeys(rows["under"]))
    known = [verdict for verdict in _VERDICTS if (rows["verdict"] == verdict).any()]
    base = draw.rows(rows).encode(
        x=alt.X(
            "n:N",
            sort=order,
            title="length n (items of the sequence)",
            axis=alt.Axis(labelAngle=0, grid=False),
            scale=alt.Scale(paddingInner=0.01),
        ),
        y=alt.Y(
            "under:N",
            sort=arms,
            title=None,
            axis=alt.Axis(labelLimit=220, grid=False),
            scale=alt.Scale(paddingInner=0.06),
        ),
        tooltip=["n:N", "under:N", "verdict:N", "said:N", "status:N"],
    )
    colours = {verdict: theme.colour(_VERDICTS[verdict]) for verdict in known}
    cells = base.mark_rect(opacity=0.8).encode(color=draw.hue("verdict", colours, **_SQUARE))
    words = base.mark_text(fontSize=9, color="black").encode(text="said:N")
    return draw.layers(cells, words, width=WIDTH, height=26 * len(arms), title=draw.heading(name))


def _bars(here: Frame, name: str) -> Any:
    parts = [
        here[["length", "verdict", share]].rename(columns={share: "value"}).assign(kind=share) for share in _SHARES
    ]
    rows: Frame = pd.concat(parts).dropna(subset=["value"])
    order = [str(length) for length in sorted(here["length"])]
    rows = rows.assign(n=rows["length"].astype(str))
    x = alt.X("n:N", sort=order, title="length n (items of the sequence)", axis=alt.Axis(labelAngle=0, grid=False))
    colours = {share: theme.colour(look) for share, look in _SHARES.items()}
    bars = draw.rows(rows[["n", "value", "kind", "verdict"]]).mark_bar()
    bars = bars.encode(
        x=x,
        y=alt.Y("value:Q", title="share of prompts", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format=".0%")),
        color=draw.hue("kind", colours, **_SQUARE),
        tooltip=["n:N", "kind:N", draw.VALUE, "verdict:N"],
    )
    return draw.layers(bars, width=WIDTH, height=HEIGHT, title=draw.heading(name))


def places_named(frame: Frame) -> list[str]:
    """v^(l) as v0, v1, ...; after the attention of a block z0, z1, ...; what else there is by its name."""
    short = {"residual": "v", "residual_mid": "z", "embedding": "v"}
    return [
        f"{short[site]}{layer}" if site in short else str(site)
        for site, layer in zip(frame["site"], frame["layer"], strict=True)
    ]


def _places(result: Decodable) -> list[Any]:
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
        panels: list[Any] = [
            _place_panel(here[here["test"] == test], f"{dtype}, {test}", alone.get(test)) for test in tests
        ]
        rows += [alt.hconcat(*panels, spacing=18).resolve_scale(color="shared")] if panels else []
    return rows


def _place_panel(here: Frame, name: str, alone: float | None) -> Any:
    rows = here.assign(place=places_named(here), quantity=here["control"].map(_CONTROLS), value=here["accuracy"])
    rows = rows[["place", "quantity", "value", "low", "high"]]
    order = list(dict.fromkeys(rows["place"]))
    colours = {name: theme.colour(look) for name, look in _HUES.items()}
    hue = draw.hue("quantity", colours | ({} if alone is None else {_ALONE: theme.INK}), columns=4)
    base = draw.rows(draw.known(rows)).encode(
        x=alt.X("place:N", sort=order, title="v^(l), z after attention, y"),
        xOffset=alt.XOffset("quantity:N", sort=list(_HUES)),
        color=hue,
        tooltip=["place:N", "quantity:N", draw.VALUE, "low:Q", "high:Q"],
    )
    y = alt.Y("value:Q", title="right (held-out prompts)", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format=".0%"))
    marks = [base.mark_rule().encode(y="low:Q", y2="high:Q"), base.mark_point(filled=True, size=34).encode(y=y)]
    if alone is not None:
        level = draw.rows(pd.DataFrame({"value": [alone], "quantity": [_ALONE]}))
        marks.insert(0, level.mark_rule(strokeDash=[4, 3]).encode(y=y, color=hue, tooltip=["quantity:N", draw.VALUE]))
    return draw.layers(*marks, width=NARROW, height=HEIGHT, title=draw.heading(name))
