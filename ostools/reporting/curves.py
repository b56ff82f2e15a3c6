"""Collapse curves: how far two last-token representations are apart, against length, dtype by dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import altair as alt
import pandas as pd

from ostools.errors import InputError
from ostools.reporting import axes, theme
from ostools.reporting.frames import Frame, frame_of

if TYPE_CHECKING:
    from ostools.measure import Collapse

NORM_WORDS = {"l1": "L1", "l2": "L2", "linf": "L∞", "cosine": "cosine"}
WIDTH, HEIGHT = 240, 190
QUANTITIES: dict[str, tuple[str, list[float]]] = {
    "theorem": ("measured: v against v with its last token repeated", [1, 0]),
    "one-more-digit": ("measured: one more digit, another pair (no theorem)", [9, 3, 2, 3]),
    "reference": ("measured in float64: what collapse is read from", [1, 0]),
    "noise": ("rounding noise of the run in this dtype", [1.5, 2.5]),
    "machine_line": ("machine line: one representable step", [7, 4]),
}
"""What a collapse chart draws: the legend's words and the dash."""


def collapse_chart(
    result: Collapse,
    sites: Sequence[str] = ("residual", "y", "logits"),
    *,
    per: str = "vector",
    norm: str = "l2",
) -> alt.FacetChart:
    """Distance between the two last-token representations against length, a panel per site and dtype.

    Each panel holds the measured distance of every pair, the rounding noise of that dtype and its machine line. Whole vectors
    in L2, of which the theorem speaks, have the float64 distance beside them, thin and grey, and a vertical line at the
    collapse length where one was reached. Heads (`per`) and seeds are shown by their mean, with a band from least to greatest.
    """
    frame = frame_of(result)
    frame = frame[frame["site"].isin(list(sites)) & (frame["per"] == per) & (frame["norm"] == norm)]
    if frame.empty:
        known = frame_of(result)[["site", "per", "norm"]].drop_duplicates().astype(str).agg("/".join, axis=1)
        raise InputError(f"no rows of {'+'.join(sites)}/{per}/{norm} in this result: there are {', '.join(known)}")
    dtypes = list(dict.fromkeys(frame["dtype"]))
    order = [f"{site}, {dtype}" for site in sites if (frame["site"] == site).any() for dtype in dtypes]
    whole = per == "vector" and norm == "l2"
    data = _collapse_rows(frame, result.reference if whole else None)
    axes.require_finite(data["value"], "a collapse curve")
    reached = _reached(result, sites, dtypes) if whole else pd.DataFrame()
    chart = _collapse_layers(data, NORM_WORDS.get(norm, norm), reached).facet(
        facet=alt.Facet("panel:N", sort=order, title=None), columns=len(dtypes), spacing=22
    )
    tasks = ", ".join(sorted(set(map(str, frame["task"]))))
    subtitle = [axes.ZERO_NOTE] if (data["value"] == 0).any() else []
    title = alt.TitleParams(f"Distance of the last-token representations, {tasks}", subtitle=subtitle)
    return axes.themed(chart.properties(title=title))


def _collapse_rows(frame: Frame, reference: Frame | None) -> Frame:
    """One row per point drawn: panel, length, quantity, value, low, high, the dtype that gives the colour."""
    keys = ["pair", "length", "tokens", "dtype", "site"]
    measured = frame.groupby(keys, as_index=False, sort=False, observed=True).agg(
        value=("mean", "mean"),
        low=("minimum", "min"),
        high=("maximum", "max"),
        noise=("noise", "mean"),
        machine_line=("machine_line", "mean"),
    )
    measured = measured.assign(quantity=measured["pair"], hue=measured["dtype"])
    parts = [measured]
    # The floors belong to the representation, not to the pair: drawn once, from the pair that the theorem is about.
    first = "theorem" if (measured["pair"] == "theorem").any() else measured["pair"].iloc[0]
    for quantity in ("noise", "machine_line"):
        floor = measured[(measured["pair"] == first) & measured[quantity].notna()]
        value = floor[quantity]
        parts.append(floor.assign(value=value, low=value, high=value, quantity=quantity))
    if reference is not None:
        exact = reference[(reference["pair"] == first) & reference["site"].isin(frame["site"])]
        exact = exact.groupby(["length", "site"], as_index=False, sort=False).agg(value=("distance", "mean"))
        exact = exact.assign(low=exact["value"], high=exact["value"], quantity="reference", hue="float64")
        parts += [exact.assign(dtype=dtype) for dtype in dict.fromkeys(frame["dtype"]) if dtype != "float64"]
    rows = pd.concat(parts, ignore_index=True)
    return rows.assign(panel=rows["site"] + ", " + rows["dtype"]).drop(
        columns=["noise", "machine_line", "pair", "tokens"]
    )


def _reached(result: Collapse, sites: Sequence[str], dtypes: Sequence[str]) -> Frame:
    """Where collapse was reached, in the panels drawn: the greatest length over seeds, if every seed reached it."""
    table = result.collapse_lengths()
    table = table[(table["pair"] == "theorem") & table["site"].isin(list(sites)) & table["dtype"].isin(list(dtypes))]
    ends = table.groupby(["site", "dtype"])["collapse_length"].agg(lambda found: found.max(skipna=False)).dropna()
    rows = ends.reset_index()
    return pd.DataFrame({"panel": rows["site"] + ", " + rows["dtype"], "length": rows["collapse_length"].astype(int)})


def _collapse_layers(data: Frame, norm: str, reached: Frame) -> alt.LayerChart:
    floored, floor = axes.floored(data)
    lows = floored["low"].where(floored["low"] > 0, floored["shown"])
    floored = floored.assign(low=lows, band=floored["high"] > floored["low"])
    hues = [dtype for dtype in theme.COLOURS if dtype in set(floored["hue"])]
    quantities = [name for name in QUANTITIES if name in set(floored["quantity"])]
    words = {name: QUANTITIES[name][0] for name in quantities}
    floored["drawn"] = floored["quantity"].map(words)
    span = (int(floored["length"].min()), int(floored["length"].max()))
    kind = "log" if span[0] > 0 and span[1] >= 10 * span[0] else "linear"
    rounds = [digit * 10**power for power in range(7) for digit in (1, 2, 5)]
    ticks = [value for value in rounds if span[0] <= value <= span[1]] if kind == "log" else alt.Undefined
    scale, axis = axes.log_axis(pd.concat([floored["shown"], lows]), floor)
    base = axes.chart(floored).encode(
        x=alt.X(
            "length:Q",
            title="length n (items of the sequence)",
            scale=alt.Scale(type=kind, domain=list(span), nice=False),
            axis=alt.Axis(grid=False, format="d", tickMinStep=1, values=ticks),
        ),
        y=alt.Y(
            "shown:Q",
            title=f"{norm} distance",
            scale=scale,
            axis=axis,
        ),
        color=alt.Color(
            "hue:N",
            scale=alt.Scale(domain=hues, range=[theme.colour(hue) for hue in hues]),
            legend=alt.Legend(title="dtype", columns=len(hues), symbolStrokeWidth=4),
        ),
        detail=["drawn:N"],
    )
    dashes = alt.StrokeDash(
        "drawn:N",
        scale=alt.Scale(domain=list(words.values()), range=[QUANTITIES[name][1] for name in quantities]),
        legend=alt.Legend(title=None, columns=1),
    )
    tooltip = [
        alt.Tooltip("length:Q"),
        alt.Tooltip("drawn:N", title="what"),
        alt.Tooltip("hue:N", title="dtype"),
        alt.Tooltip("value:Q", format=".4g"),
    ]
    layers: list[Any] = []
    if floored["band"].any():
        band = base.transform_filter("datum.band").mark_area(opacity=0.18)
        layers.append(band.encode(y=alt.Y("low:Q"), y2="high:Q"))
    # The reference lies under the dtype's own lines, and thinner.
    exact = "datum.quantity === 'reference'"
    layers.append(base.transform_filter(exact).mark_line(strokeWidth=1).encode(strokeDash=dashes))
    layers.append(base.transform_filter(f"!({exact})").mark_line(strokeWidth=1.5).encode(strokeDash=dashes))
    layers.append(base.mark_circle(size=24, opacity=0).encode(tooltip=tooltip))
    if floor is not None:
        layers.append(axes.zero_marks(base.encode(tooltip=tooltip)))
    if not reached.empty:
        layers += _collapse_marks(base, reached)
    return alt.layer(*layers).properties(width=WIDTH, height=HEIGHT)


def _collapse_marks(base: alt.Chart, reached: Frame) -> list[alt.Chart]:
    """A vertical line at the collapse length of each panel, with the length beside it."""
    marks = {panel: length for panel, length in zip(reached["panel"], reached["length"], strict=True)}
    at = f"indexof({theme.safe_json(list(marks))}, datum.panel)"
    # One row a panel, out of the rows that the panel already has: a facet's layers share their data.
    here = base.transform_filter(f"{at} >= 0 && datum.length === {theme.safe_json(list(marks.values()))}[{at}]")
    here = here.transform_filter("datum.quantity === 'theorem'")
    x = alt.X("length:Q")
    rule = here.mark_rule(strokeWidth=1, opacity=0.8).encode(x=x, y=alt.Undefined, detail=alt.Undefined)
    text = here.transform_calculate(words="'collapse from n = ' + datum.length").mark_text(
        align="right", baseline="bottom", dx=-4, fontSize=10
    )
    return [rule, text.encode(x=x, y=alt.value(HEIGHT - 5), text="words:N", detail=alt.Undefined)]
