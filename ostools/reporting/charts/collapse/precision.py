"""Which part of low precision hides the pair: the noise that each way of storing makes, and where the distance meets it."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from ostools.ground.errors import InputError
from ostools.measure.collapse.result import Collapse
from ostools.reporting.findings.collapse import main_pair, overflow_sentence, whole
from ostools.reporting.forms.curve import curve, fitted, grid
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
    "noise": ("rounding noise of the difference", [1, 0]),
    "weight_shift": ("what storing the weights shifts (v and v* alike)", [1.5, 2.5]),
}
ENDS = {
    "y": "y − y*, below its own noise",
    "logits": "logits",
    "top-token": "same top token",
    "identical-logits": "bit-identical logits",
}
_SHAPES = ["circle", "cross", "square", "triangle-up", "diamond"]


def precision_chart(result: Collapse, site: str = "y") -> alt.VConcatChart:
    """Above, a panel a part: the pair's float64 distance, and each format's noise of the difference. Below, the hidden ranges.

    Where the noise of the difference is above the distance, that precision hides the pair.
    """
    frame = whole(result.measured(), site)
    pair = main_pair(result)
    frame = frame[(frame["pair"] == pair) & (frame["dtype"] != "float64")]
    if frame.empty:
        raise InputError(f"a chart of precisions needs rows of site {site!r} in another dtype than float64, found none")
    rows, y = fitted(_rows(frame, result.reference, pair, site), "L2 distance")
    panels = {panel: _curves(rows, panel) for panel in dict.fromkeys(rows["panel"])}
    drawn = grid(panels, axes.length_axis(rows["length"]), y, 2, (290, 190))
    curves: list[Any] = [alt.hconcat(*row, spacing=22) for row in drawn]
    above = alt.vconcat(*curves, spacing=22).resolve_scale(color="shared", strokeDash="shared")
    notes = [f"L2 distance at {site} against the noise of each way of storing numbers"]
    notes += [words] if (words := overflow_sentence(result.overflowing())) else []
    title = f"Which part of low precision hides the pair, {frame['task'].iloc[0]}"
    scales = {"color": "shared", "shape": "independent", "strokeDash": "independent"}
    return draw.figure([[above], [_ranges(result, pair)]], title, notes, between=26, **scales)


def _split(name: str) -> tuple[str, str]:
    """The format and the part of a precision's name."""
    format, dash, part = name.partition("-")
    return format, part if dash else "cast"


def _rows(frame: Frame, reference: Frame, pair: str, site: str) -> Frame:
    """The distance and the noises against length, the mean over seeds; every panel has the distance of the weights as given."""
    exact = reference[(reference["pair"] == pair) & (reference["site"] == site)]
    exact = exact.groupby(["weights", "length"], as_index=False)["distance"].mean()
    exact = exact.rename(columns={"distance": "value"})
    # What each range was read from: the float64 distance of the weights as that precision stores them.
    curves = {str(weights): rows[["length", "value"]] for weights, rows in exact.groupby("weights")}
    stored = frame.drop_duplicates("dtype").set_index("dtype")["weights"]
    parts = []
    for name, rows in frame.groupby("dtype", sort=False):
        format, part = _split(str(name))
        same = {"series": format, "panel": PARTS[part]}
        means = rows.groupby("length", as_index=False)[["pair_noise", "weight_shift"]].mean()
        for quantity, column in (("noise", "pair_noise"), ("weight_shift", "weight_shift")):
            if (means[column] > 0).any():
                parts.append(means[["length"]].assign(value=means[column], quantity=quantity, **same))
        if stored[name] != "given":
            parts.append(curves[str(stored[name])].assign(quantity="stored", **same))
    panels = dict.fromkeys(part["panel"].iloc[0] for part in parts)
    parts += [curves["given"].assign(quantity="distance", series="float64", panel=panel) for panel in panels]
    return pd.concat(parts, ignore_index=True)


def _curves(rows: Frame, panel: str) -> Any:
    """The marks of a panel: the pair's distance thick, all else thin."""

    def marks(x: alt.X, y: dict[str, Any]) -> list[Any]:
        looks: dict[str, Any] = {"dash": draw.dashes(QUANTITIES, rows["quantity"])}
        looks["tooltip"] = ["series:N", "quantity:N", "length:Q"]
        here, thick = rows["panel"] == panel, rows["quantity"] == "distance"
        hue = _formats(rows["series"])
        return curve(rows[here & thick], x, y, hue, width=2.6, **looks) + curve(
            rows[here & ~thick], x, y, hue, width=1.3, **looks
        )

    return marks


def _formats(column: Any) -> alt.Color:
    looks = theme.in_order(set(column))
    return draw.hue("series", looks, title="format", columns=len(looks), symbolStrokeWidth=4)


def _ranges(result: Collapse, pair: str) -> Any:
    """The ranges of lengths at which each precision hides the pair; a hollow mark at the right edge where there is none."""
    data: Frame = pd.DataFrame(_range_rows(result, pair))
    ends = [word for word in ENDS.values() if (data["end"] == word).any()]
    last = int(frame_of(result)["length"].max())
    x = alt.X(
        "length:Q",
        title="lengths n at which the pair is hidden (hollow, at the edge: no range)",
        scale=alt.Scale(type="log", domain=[1, max(last, 2)], nice=False),
        axis=alt.Axis(format="d", values=axes.length_ticks(1, last)),
    )
    base = draw.rows(data).encode(
        x=x,
        y=alt.Y("precision:N", sort=list(dict.fromkeys(data["precision"])), title=None, axis=alt.Axis(grid=True)),
        yOffset=alt.YOffset("end:N", sort=ends),
        color=_formats([*data["series"], "float64"]),  # as above, where the distance itself is float64's
        tooltip=["precision:N", "end:N", "status:N"],
    )
    shape = alt.Shape(
        "end:N",
        sort=ends,
        scale=alt.Scale(domain=ends, range=_SHAPES[: len(ends)]),
        legend=alt.Legend(title="indistinguishable by", columns=len(ends), symbolType=alt.Undefined, symbolSize=60),
    )
    reached, hollow = (base.transform_filter(f"{sign}datum.reached") for sign in ("", "!"))
    marks = [
        reached.mark_rule(strokeWidth=2).encode(x2="to:Q"),
        reached.mark_point(filled=True, size=42).encode(shape=shape),
        hollow.mark_point(filled=False, size=30).encode(shape=shape),
    ]
    return draw.layers(*marks, width=600, height=alt.Step(7))


def _range_rows(result: Collapse, pair: str) -> list[dict[str, Any]]:
    """A row a range, or one at the right edge for a precision without a range at that site."""
    rows, longest = [], int(frame_of(result)["length"].max())
    for (kind, name, site, _), verdict in result.verdicts_over_seeds().items():
        if kind != pair or site not in ENDS:
            continue
        format, part = _split(name)
        same = {"precision": f"{format} {part}", "series": format, "end": ENDS[site], "status": verdict.words}
        spans = [{"length": span.first, "to": span.last, "reached": True} for span in verdict.ranges]
        rows += [same | span for span in spans or [{"length": longest, "to": longest, "reached": False}]]
    return rows
