"""Which part of low precision hides the pair: the noise that each way of storing makes, and where the distance meets it."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from ostools.ground.errors import InputError
from ostools.measure import Collapse
from ostools.reporting.findings.collapse import main_pair, whole
from ostools.reporting.look import axes, draw, theme
from ostools.results import Frame, frame_of

PARTS = {
    "cast": "whole model cast",
    "weights": "weights stored, float32 arithmetic",
    "residual": "residual stream stored, float32 arithmetic",
    "kv": "keys and values stored, float32 arithmetic",
    "dynamic": "weights and activations multiplied as integers",
}
"""What is rounded, in words, by the part of a precision's name."""
QUANTITIES: dict[str, tuple[str, list[float]]] = {
    "distance": ("thick: float64 distance of the pair, weights as given", [1, 0]),
    "stored": ("the same with the weights so stored", [7, 3]),
    "noise": ("rounding noise while running", [1, 0]),
    "weight_shift": ("what storing the weights shifts (v and v* alike)", [1.5, 2.5]),
}
ENDS = {"y": "y", "logits": "logits", "top-token": "same top token", "identical-logits": "bit-identical logits"}
PAIR_END = "y − y*, below its own noise"
_SHAPES = ["circle", "cross", "square", "triangle-up", "diamond"]


def precision_chart(result: Collapse, site: str = "y") -> alt.VConcatChart:
    """Above, a panel a part: the pair's distance in float64, and the noise of each format. Below, the collapse lengths.

    Where a format's noise stays above the distance, the pair is hidden: from there on it is collapsed in that precision.
    """
    frame = whole(frame_of(result), site)
    pair = main_pair(result)
    frame = frame[(frame["pair"] == pair) & (frame["dtype"] != "float64")]
    if frame.empty:
        raise InputError(f"a chart of precisions needs rows of site {site!r} in another dtype than float64, found none")
    task = str(frame["task"].iloc[0])
    title = alt.TitleParams(
        f"Which part of low precision hides the pair, {task}",
        subtitle=[f"L2 distance at {site} against the noise of each way of storing numbers"],
    )
    chart = alt.vconcat(_curves(frame, result.reference, pair, site), _lengths(result, pair), title=title, spacing=26)
    return axes.themed(chart.resolve_scale(color="shared", shape="independent", strokeDash="independent"))


def _split(name: str) -> tuple[str, str]:
    """The format and the part of a precision's name."""
    format, dash, part = name.partition("-")
    return format, part if dash else "cast"


def _curves(frame: Frame, reference: Frame, pair: str, site: str) -> Any:
    """The distance and the noises against length, the mean over seeds."""
    keys = ["dtype", "length"]
    means = frame.groupby(keys, as_index=False, sort=False)[["noise", "weight_shift"]].mean()
    exact = reference[(reference["pair"] == pair) & (reference["site"] == site)]
    exact = (
        exact.groupby(["weights", "length"], as_index=False)["distance"].mean().rename(columns={"distance": "value"})
    )
    parts = []
    for name, rows in means.groupby("dtype", sort=False):
        format, part = _split(str(name))
        for quantity in ("noise", "weight_shift"):
            if (rows[quantity] > 0).any():
                here = rows[["length"]].assign(value=rows[quantity], quantity=quantity)
                parts.append(here.assign(format=format, panel=PARTS[part]))
    panels = list(dict.fromkeys(part["panel"].iloc[0] for part in parts))
    # What each collapse length was read from: the float64 distance of the weights as that precision stores them.
    curves = {str(weights): rows[["length", "value"]] for weights, rows in exact.groupby("weights")}
    parts += [curves["given"].assign(quantity="distance", format="float64", panel=panel) for panel in panels]
    for name, weights in frame.drop_duplicates("dtype").set_index("dtype")["weights"].items():
        format, part = _split(str(name))
        if weights != "given":
            parts.append(curves[str(weights)].assign(quantity="stored", format=format, panel=PARTS[part]))
    rows, floor = axes.floored(pd.concat(parts, ignore_index=True))
    axes.require_finite(rows["value"], "a chart of precisions")
    base = axes.chart(rows).encode(
        x=axes.length_axis(rows["length"]),
        y=draw.log_y(rows["shown"], "L2 distance", floor),
        color=_formats(rows["format"]),
        strokeDash=draw.dashes(QUANTITIES, rows["quantity"]),
        tooltip=["format:N", "quantity:N", "length:Q", draw.VALUE],
    )
    layers: list[Any] = [
        base.transform_filter("datum.quantity === 'distance'").mark_line(strokeWidth=2.6),
        base.transform_filter("datum.quantity !== 'distance'").mark_line(strokeWidth=1.3),
    ]
    layers += draw.zeros(base, floor)
    layered: Any = alt.layer(*layers)
    facet = alt.Facet("panel:N", sort=panels, title=None)
    chart = layered.properties(width=290, height=190).facet(facet=facet, columns=2, spacing=22)
    return axes.unfolded(chart, rows)


def _formats(column: Any) -> alt.Color:
    looks = theme.in_order(set(column))
    return draw.hue("format", looks, title="format", columns=len(looks), symbolStrokeWidth=4)


def _lengths(result: Collapse, pair: str) -> Any:
    """The collapse length of each precision; a hollow mark at the right edge where it was not reached."""
    table: Any = result.collapse_lengths()
    table = table[(table["pair"] == pair) & table["site"].isin(list(ENDS))]
    rows = []
    for (name, site), group in table.groupby(["dtype", "site"], sort=False):
        ends = {ENDS[str(site)]: group["collapse_length"]}
        if site == "y":
            ends[PAIR_END] = group["pair_collapse_length"]
        format, part = _split(str(name))
        same = {"precision": f"{format} {part}", "format": format}
        rows += [same | _end(end, reached, int(group["n_max"].max())) for end, reached in ends.items()]
    data: Frame = pd.DataFrame(rows)
    ends = [word for word in (ENDS["y"], PAIR_END, *ENDS.values()) if (data["end"] == word).any()]
    ends = list(dict.fromkeys(ends))
    last = int(data["length"].max())
    x = alt.X(
        "length:Q",
        title="collapse length n (hollow, at the edge: not reached)",
        scale=alt.Scale(type="log", domain=[1, max(last, 2)], nice=False),
        axis=alt.Axis(format="d", values=axes.length_ticks(1, last)),
    )
    base = axes.chart(
        data
    ).encode(
        x=x,
        y=alt.Y("precision:N", sort=list(dict.fromkeys(data["precision"])), title=None, axis=alt.Axis(grid=True)),
        yOffset=alt.YOffset("end:N", sort=ends),
        color=_formats([*data["format"], "float64"]),  # as above, where the distance itself is float64's
        shape=alt.Shape(
            "end:N",
            sort=ends,
            scale=alt.Scale(domain=ends, range=_SHAPES[: len(ends)]),
            legend=alt.Legend(title="indistinguishable by", columns=len(ends), symbolType=alt.Undefined, symbolSize=60),
        ),
        tooltip=["precision:N", "end:N", "status:N"],
    )
    marks = [
        base.transform_filter("datum.reached").mark_point(filled=True, size=42),
        base.transform_filter("!datum.reached").mark_point(filled=False, size=30),
    ]
    layered: Any = alt.layer(*marks)
    return axes.unfolded(layered.properties(width=600, height=alt.Step(7)), data)


def _end(end: str, reached: Any, n_max: int) -> dict[str, Any]:
    """One mark: the greatest collapse length over seeds, or the right edge where a seed did not reach it."""
    if bool(reached.isna().any()):
        return {"end": end, "length": n_max, "reached": False, "status": f"not reached by {n_max}"}
    return {"end": end, "length": int(reached.max()), "reached": True, "status": f"from n = {int(reached.max())}"}
