"""Collapse curves: how far two last-token representations are apart, against length, dtype by dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from ostools.measure import Collapse
from ostools.measure.collapse.readings import NORM_WORDS, PIECES, READINGS, VECTOR, Reading
from ostools.reporting.findings.collapse import trained_length
from ostools.reporting.look import axes, draw, theme
from ostools.results import Column, Frame, frame_of

WIDTH, HEIGHT = 240, 190
PAIRS = {"theorem": "", "task": ": n and n + 1 items (no theorem)", "one-more-digit": ": one more digit (no theorem)"}
"""What a panel's title adds for a pair that is not the theorem's."""
QUANTITIES: dict[str, tuple[str, list[float]]] = {
    "distance": ("measured distance of the pair (dots where it jumps)", [1, 0]),
    "reference": ("the same in float64: what collapse is read from", [5, 1.5]),
    "noise": ("rounding noise of the run in this dtype", [1.5, 2.5]),
    "machine_line": ("machine line: one representable step", [7, 4]),
}
"""What a collapse chart draws: the legend's words and the dash."""
JUMPS = 0.08
"""A curve whose neighbours differ by more than 10^JUMPS (20%) in the median is drawn as dots: a line would only fill a band."""


def collapse_chart(
    result: Collapse,
    sites: Sequence[str] | None = None,
    *,
    per: str = VECTOR,
    norm: str = "l2",
) -> alt.FacetChart:
    """Distance between the two last-token representations against length, a panel per site, dtype and kind of pair.

    sites: those that have such pieces where none are given: residual, y and logits for whole vectors.

    Each panel holds the measured distance, the rounding noise of that dtype and its machine line, the float64 distance beside
    them, thin and grey, and a vertical line at the collapse length where one was reached, all of them of the pieces (`per`) and
    in the norm that is drawn. A dotted line stands at the longest length that the model was trained on. Heads and seeds are
    shown by their mean, with a band from the least to the greatest.
    """
    table = frame_of(result)
    sites = [site for site, known in READINGS.items() if per in known] if sites is None else sites
    frame = pd.concat([Reading(site, per, norm).of(table) for site in sites])
    rows, floor = axes.floored(_collapse_rows(frame))
    axes.require_finite(rows["value"], "a collapse curve")
    dtypes = list(dict.fromkeys(frame["dtype"]))
    panels = [_panel(site, dtype, pair) for pair in PAIRS for site in sites for dtype in dtypes]
    reached = _reached(result.collapse_lengths(per, norm), sites, dtypes)
    layers = _collapse_layers(rows, floor, NORM_WORDS.get(norm, norm), reached, _training_ends(result))
    facet = alt.Facet("panel:N", sort=[panel for panel in panels if (rows["panel"] == panel).any()], title=None)
    chart = axes.unfolded(layers.facet(facet=facet, columns=len(dtypes), spacing=22), rows)
    subtitle = [axes.ZERO_NOTE] if (rows["value"] == 0).any() else []
    tasks = ", ".join(sorted(set(map(str, frame["task"]))))
    over = [f"Mean over {PIECES[per]}; band: from the least to the greatest of them."] if PIECES[per] else []
    title = alt.TitleParams(f"Distance of the last-token representations, {tasks}", subtitle=[*over, *subtitle])
    return axes.themed(chart.properties(title=title))


def _panel(site: str, dtype: str, pair: str) -> str:
    return f"{site}, {dtype}{PAIRS.get(pair, f': {pair}')}"


def _collapse_rows(frame: Frame) -> Frame:
    """One row per point drawn: panel, length, quantity, hue (the dtype that gives the colour), value, and the band if any."""
    keys = ["pair", "length", "dtype", "site"]
    measured = frame.groupby(keys, as_index=False, sort=False, observed=True).agg(
        value=("mean", "mean"),
        low=("minimum", "min"),
        high=("maximum", "max"),
        noise=("noise", "mean"),
        machine_line=("machine_line", "mean"),
        exact=("float64_distance", "mean"),
    )
    measured["hue"] = measured["dtype"]
    parts = [measured.assign(quantity="distance")]
    for quantity in ("noise", "machine_line"):
        floor = measured[measured[quantity].notna()]
        value = floor[quantity]
        parts.append(floor.assign(value=value, low=value, high=value, quantity=quantity))
    exact = measured[measured["exact"].notna() & (measured["dtype"] != "float64")]
    value = exact["exact"]
    parts.append(exact.assign(value=value, low=value, high=value, quantity="reference", hue="float64"))
    rows = pd.concat(parts, ignore_index=True)
    names = zip(rows["site"], rows["dtype"], rows["pair"], strict=True)
    rows["panel"] = [_panel(*map(str, name)) for name in names]
    rows["dots"] = rows["quantity"].isin(["distance", "reference"]) & rows["panel"].isin(_jumping(rows))
    # A band is drawn where there is one, if its lower end can stand on the log axis.
    rows["band"] = (rows["high"] > rows["low"]) & (rows["low"] > 0)
    needed = ["panel", "length", "quantity", "hue", "value", "dots"]
    return rows[[*needed, "low", "high", "band"] if bool(np.any(rows["band"])) else needed]


def _jumping(rows: Frame) -> list[str]:
    """The panels whose measured curve jumps up and down from one length to the next."""
    found = []
    for panel, curve in rows[(rows["quantity"] == "distance") & (rows["value"] > 0)].groupby("panel"):
        if jumps(curve.sort_values("length")["value"]):
            found.append(str(panel))
    return found


def jumps(values: Column) -> bool:
    """Whether neighbours differ so much that a line would only fill a band; dots then show what it is made of."""
    steps = np.abs(np.diff(np.log10(values[values > 0].to_numpy(dtype=float))))
    return len(steps) > 30 and float(np.median(steps)) > JUMPS


def _reached(table: Frame, sites: Sequence[str], dtypes: Sequence[str]) -> dict[str, int]:
    """Where collapse was reached, by panel: the greatest length over seeds, if every seed reached it."""
    table = table[(table["pair"] == "theorem") & table["site"].isin(list(sites)) & table["dtype"].isin(list(dtypes))]
    return {
        _panel(site, dtype, "theorem"): int(lengths.max())
        for (site, dtype), lengths in table.groupby(["site", "dtype"])["collapse_length"]
        if lengths.notna().all()
    }


def _training_ends(result: Collapse) -> int | None:
    """The longest of these lengths that the model was trained on, where its card says and the curve goes beyond it."""
    longest = trained_length(result, result.provenance.model.get("trained_lengths"))
    lengths = frame_of(result)["length"]
    if longest is None or not int(lengths.min()) <= longest < int(lengths.max()):
        return None
    return int(lengths[lengths <= longest].max())


def _collapse_layers(
    rows: Frame, floor: float | None, norm: str, reached: dict[str, int], trained: int | None
) -> alt.LayerChart:
    has_band = "band" in rows
    shown = (
        pd.concat([rows["shown"], rows[rows["band"]]["low"], rows[rows["band"]]["high"]]) if has_band else rows["shown"]
    )
    hues = theme.in_order(set(rows["hue"]))
    base = axes.chart(rows).encode(
        x=axes.length_axis(rows["length"]),
        y=draw.log_y(shown, f"{norm} distance", floor),
        color=draw.hue("hue", hues, title="dtype", columns=len(hues), symbolStrokeWidth=4),
        detail=["quantity:N"],
    )
    dashes = draw.dashes(QUANTITIES, rows["quantity"])
    tooltip = [
        alt.Tooltip("length:Q"),
        alt.Tooltip("quantity:N"),
        alt.Tooltip("hue:N", title="dtype"),
        draw.VALUE,
    ]
    layers: list[Any] = []
    if has_band:
        band = base.transform_filter("datum.band").mark_area(opacity=0.18)
        layers.append(band.encode(y=alt.Y("low:Q"), y2="high:Q"))
    # The reference lies under the dtype's own marks, and is thinner.
    for exact, width, size in (("===", 1.0, 4), ("!==", 1.5, 9)):
        here = base.transform_filter(f"datum.quantity {exact} 'reference'")
        layers.append(here.transform_filter("!datum.dots").mark_line(strokeWidth=width).encode(strokeDash=dashes))
        layers.append(here.transform_filter("datum.dots").mark_circle(size=size))
    layers.append(base.mark_circle(size=24, opacity=0).encode(tooltip=tooltip))
    layers += draw.zeros(base.encode(tooltip=tooltip), floor)
    if reached:
        layers += _collapse_marks(base, reached)
    if trained is not None:
        layers += _training_marks(base, trained)
    return draw.layers(*layers, width=WIDTH, height=HEIGHT)


def _collapse_marks(base: alt.Chart, reached: dict[str, int]) -> list[alt.Chart]:
    """A vertical line at the collapse length of each panel, with the length beside it."""
    at = f"indexof({theme.safe_json(list(reached))}, datum.panel)"
    # One row a panel, out of the rows that the panel already has: a facet's layers share their data.
    here = base.transform_filter(f"{at} >= 0 && datum.length === {theme.safe_json(list(reached.values()))}[{at}]")
    here = here.transform_filter("datum.quantity === 'distance'")
    x = alt.X("length:Q")
    rule = here.mark_rule(strokeWidth=1).encode(x=x, y=alt.Undefined, detail=alt.Undefined)
    words = here.transform_calculate(words="'collapse from n = ' + datum.length")
    text = words.mark_text(align="right", baseline="bottom", dx=-4, fontSize=10)
    return [rule, text.encode(x=x, y=alt.value(HEIGHT - 5), text="words:N", detail=alt.Undefined)]


def _training_marks(base: alt.Chart, trained: int) -> list[alt.Chart]:
    """A dotted vertical line in every panel: to its right are positions that training never showed."""
    here = base.transform_filter(f"datum.length === {trained} && datum.quantity === 'distance'")
    x, neutral = alt.X("length:Q"), alt.value(theme.colour("float64"))
    rule = here.mark_rule(strokeWidth=1, strokeDash=[1, 2]).encode(
        x=x, y=alt.Undefined, color=neutral, detail=alt.Undefined
    )
    words = here.transform_calculate(words=f"'trained to n = {trained}'")
    text = words.mark_text(align="right", baseline="bottom", dx=-4, fontSize=10)
    where = alt.value(HEIGHT - 20)
    return [rule, text.encode(x=x, y=where, text="words:N", color=neutral, detail=alt.Undefined)]
